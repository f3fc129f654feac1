"""The optimizers in NumPy, float64: formulas of the papers and of PyTorch, one parameter and one step at a time.

Every function takes the weights, the gradient, the learning rate, the number of the step (from 1), the moments, which it changes in place, and the
hyperparameters, and returns the new weights."""

import numpy as np


def adam(w, g, rate, step, m, v, *, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.0, decoupled=0):
    w, g = decayed(w, g, rate, weight_decay, decoupled)
    m[...] = beta1 * m + (1 - beta1) * g
    v[...] = beta2 * v + (1 - beta2) * g**2
    return w - rate * (m / (1 - beta1**step)) / (np.sqrt(v / (1 - beta2**step)) + epsilon)


def momentum(w, g, rate, step, m=None, *, momentum=0.9, dampening=0.0, weight_decay=0.0, nesterov=0, decoupled=0):
    w, g = decayed(w, g, rate, weight_decay, decoupled)
    if m is None:
        return w - rate * g
    m[...] = g if step == 1 else momentum * m + (1 - dampening) * g
    return w - rate * (g + momentum * m if nesterov else m)


def lion(w, g, rate, step, m, *, beta1=0.9, beta2=0.99, weight_decay=0.0):
    direction = np.sign(beta1 * m + (1 - beta1) * g)
    m[...] = beta2 * m + (1 - beta2) * g
    return w - rate * (direction + weight_decay * w)


def rmsprop(w, g, rate, step, v, mean=None, m=None, *, alpha=0.99, epsilon=1e-8, momentum=0.0, weight_decay=0.0, centered=0, decoupled=0):
    w, g = decayed(w, g, rate, weight_decay, decoupled)
    v[...] = alpha * v + (1 - alpha) * g**2
    variance = v
    if centered:
        mean[...] = alpha * mean + (1 - alpha) * g
        variance = np.maximum(v - mean**2, 0)
    change = g / (np.sqrt(variance) + epsilon)
    if momentum:
        m[...] = momentum * m + change
        change = m
    return w - rate * change


def adagrad(w, g, rate, step, total, *, epsilon=1e-10, learning_rate_decay=0.0, weight_decay=0.0, decoupled=0):
    w, g = decayed(w, g, rate, weight_decay, decoupled)
    total += g**2
    return w - rate / (1 + (step - 1) * learning_rate_decay) * g / (np.sqrt(total) + epsilon)


def lamb(w, g, rate, step, m, v, *, beta1=0.9, beta2=0.999, epsilon=1e-6, weight_decay=0.01, correct_bias=1):
    m[...] = beta1 * m + (1 - beta1) * g
    v[...] = beta2 * v + (1 - beta2) * g**2
    c1, c2 = (1 - beta1**step, 1 - beta2**step) if correct_bias else (1, 1)
    direction = m / c1 / (np.sqrt(v / c2) + epsilon) + weight_decay * w
    weights, length = np.linalg.norm(w), np.linalg.norm(direction)
    return w - rate * (weights / length if weights > 0 and length > 0 else 1) * direction


def adafactor(w, g, rate, step, row, column, *, decay_rate=-0.8, epsilon1=1e-30, epsilon2=1e-3, clip_threshold=1.0, weight_decay=0.0, scale_parameter=0,
              relative_step=0):
    beta = 1 - step**decay_rate
    square = g**2 + epsilon1
    rate = min(rate, 1 / np.sqrt(step)) if relative_step else rate
    if w.ndim > 1:
        row[...] = beta * row + (1 - beta) * square.mean(-1)
        column[...] = beta * column + (1 - beta) * square.mean(-2)
        second = row[..., None] * column[..., None, :] / row.mean(-1)[..., None, None]
    else:
        row[...] = beta * row + (1 - beta) * square
        second = row
    update = g / np.sqrt(second)
    update /= max(1.0, np.sqrt(np.mean(update**2)) / clip_threshold)
    scale = max(epsilon2, np.sqrt(np.mean(w**2))) if scale_parameter else 1.0
    return w * (1 - rate * weight_decay) - rate * scale * update


def muon(w, g, rate, step, m, v, *, momentum=0.95, weight_decay=0.0, epsilon=1e-7, beta1=0.9, beta2=0.999, adam_epsilon=1e-8, nesterov=1,
         newton_schulz_steps=5, match_rms=1):
    if w.ndim < 2:
        return adam(w, g, rate, step, m, v, beta1=beta1, beta2=beta2, epsilon=adam_epsilon, weight_decay=weight_decay, decoupled=1)
    m[...] = momentum * m + (1 - momentum) * g
    matrix = ((1 - momentum) * g + momentum * m if nesterov else m).reshape(len(w), -1)
    x = matrix / (np.linalg.norm(matrix) + epsilon)
    x = x if x.shape[0] <= x.shape[1] else x.T
    for _ in range(newton_schulz_steps):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    x = x if matrix.shape[0] <= matrix.shape[1] else x.T
    rows, columns = matrix.shape
    scale = 0.2 * np.sqrt(max(rows, columns)) if match_rms else np.sqrt(max(1, rows / columns))
    return w * (1 - rate * weight_decay) - rate * scale * x.reshape(w.shape)


def decayed(w, g, rate, weight_decay, decoupled):
    """Return weights and gradient after weight decay, which changes one of them."""
    return (w * (1 - rate * weight_decay), g) if decoupled else (w, g + weight_decay * w)


REFERENCES = {function.__name__: function for function in (adam, momentum, lion, rmsprop, adagrad, lamb, adafactor, muon)}
"""Kernel -> reference."""
