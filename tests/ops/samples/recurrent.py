"""Samples of the recurrent layers; the oracles compute one row and one step at a time, as the ONNX specification describes them."""

import itertools
from dataclasses import replace

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(4)
S, N, INPUTS, H = 5, 3, 4, 6
MS, ORTRAIN = "com.microsoft", "ortrain"
LENGTHS = np.array([5, 2, 3], np.int32)


def r(*shape):
    return rng.uniform(-0.9, 0.9, shape)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def run_layer(cell, gates, states, x, w, rec, b, lengths, initial, direction, layout, **saved):
    """Return (y, final states …) of a layer.

    cell: a function of (W x + Wb of a row, state, R, Rb, direction) that returns the new state, a tuple whose first element is h."""
    if layout:
        x = x.swapaxes(0, 1)
        initial = [None if i is None else i.swapaxes(0, 1) for i in initial]
    steps, rows, _ = x.shape
    hidden, directions = rec.shape[2], w.shape[0]
    y = np.zeros((steps, directions, rows, hidden), x.dtype)
    finals = [np.zeros((directions, rows, hidden), x.dtype) for _ in range(states)]
    for d in range(directions):
        wb, rb = (np.zeros((2, gates * hidden)) if b is None else b[d].reshape(2, gates * hidden))
        for n in range(rows):
            state = tuple(np.zeros(hidden) if i is None else i[d, n] for i in initial)
            times = range(steps if lengths is None else lengths[n])
            for t in reversed(times) if direction == "reverse" or d == 1 else times:
                state = cell(w[d] @ x[t, n] + wb, state, rec[d], rb, d)
                y[t, d, n] = state[0]
            for k in range(states):
                finals[k][d, n] = state[k]
    if layout:
        return y.transpose(2, 0, 1, 3), *(f.swapaxes(0, 1) for f in finals)
    return y, *finals


def hard_sigmoid(alpha=0.2, beta=0.5):
    return lambda x: np.clip(alpha * x + beta, 0, 1)


def relu(x):
    return np.maximum(x, 0)


def softplus(x):
    return np.log1p(np.exp(x))


def lstm(x, w, rec, b=None, lengths=None, h0=None, c0=None, p=None, *, direction="forward", layout=0, functions=(sigmoid, np.tanh, np.tanh), clip=None, coupled=False):
    cut = (lambda v: v) if clip is None else lambda v: np.clip(v, -clip, clip)

    def cell(inputs, state, rd, rb, d):
        gate, candidate, output = functions[3 * d: 3 * d + 3] if len(functions) > 3 else functions
        h, c = state
        pi, po, pf = np.zeros((3, len(h))) if p is None else p[d].reshape(3, -1)
        i, o, f, u = (inputs + rd @ h + rb).reshape(4, -1)
        i = gate(cut(i + pi * c))
        f = 1 - i if coupled else gate(cut(f + pf * c))
        c = f * c + i * candidate(cut(u))
        return gate(cut(o + po * c)) * output(c), c

    return run_layer(cell, 4, 2, x, w, rec, b, lengths, [h0, c0], direction, layout)


def gru(x, w, rec, b=None, lengths=None, h0=None, *, direction="forward", layout=0, linear=0, functions=(sigmoid, np.tanh), clip=None):
    gate, candidate = functions
    cut = (lambda v: v) if clip is None else lambda v: np.clip(v, -clip, clip)

    def cell(inputs, state, rd, rb, d):
        (h,) = state
        iz, ir, ih = inputs.reshape(3, -1)
        (rz, rr, rh), (bz, br, bh) = rd.reshape(3, len(h), len(h)), rb.reshape(3, -1)
        z, reset = gate(cut(iz + rz @ h + bz)), gate(cut(ir + rr @ h + br))
        u = candidate(cut(ih + (reset * (rh @ h + bh) if linear else rh @ (reset * h) + bh)))
        return ((1 - z) * u + z * h,)

    return run_layer(cell, 3, 1, x, w, rec, b, lengths, [h0], direction, layout)


def rnn(x, w, rec, b=None, lengths=None, h0=None, *, direction="forward", layout=0, function=np.tanh):
    def cell(inputs, state, rd, rb, d):
        return (function(inputs + rd @ state[0] + rb),)

    return run_layer(cell, 1, 1, x, w, rec, b, lengths, [h0], direction, layout)


def arrays(gates, directions=1, bias=True, lengths=None, initial=1, peepholes=False, layout=0, rows=N):
    """Return the inputs of a layer in ONNX's order, None for absent ones."""
    state = (rows, directions, H) if layout else (directions, rows, H)
    found = [r(rows, S, INPUTS) if layout else r(S, rows, INPUTS), r(directions, gates * H, INPUTS), r(directions, gates * H, H), r(directions, 2 * gates * H) if bias else None,
             lengths, *[r(*state) for _ in range(initial)]]
    if peepholes:
        found.append(r(directions, 3 * H))
    while found[-1] is None:
        found.pop()
    return found


def layer(op_type, oracle, outputs, inputs, attributes=None, label="", **options):
    attributes = attributes or {}
    names = {"linear_before_reset": "linear"}
    known = {names.get(k, k): v for k, v in attributes.items() if k in ("direction", "layout", "linear_before_reset")}
    return Sample(op_type, inputs, lambda *a: oracle(*a, **known, **options), {"hidden_size": H, **attributes}, outputs=outputs, label=label)


def large_layer(op_type, oracle, gates, hidden):
    """Return a sample of a layer so large that the packed R has panels of several widths or depth blocks, with an incomplete block of rows."""
    weights = [r(1, gates * hidden, columns) / columns ** 0.5 for columns in (INPUTS, hidden)]
    return Sample(op_type, [r(2, 21, INPUTS), *weights], oracle, {"hidden_size": hidden}, outputs=2, label=f"{hidden} units")


BOTH = {"direction": "bidirectional"}
SAMPLES = [
    layer("LSTM", lstm, 3, arrays(4)[:3]), layer("LSTM", lstm, 3, arrays(4, initial=2)), layer("LSTM", lstm, 1, arrays(4, initial=2), label="y"),
    layer("LSTM", lstm, 3, arrays(4, initial=2, rows=37), label="several blocks"),
    layer("LSTM", lstm, 3, arrays(4, initial=2), {"direction": "reverse"}), layer("LSTM", lstm, 3, arrays(4, 2, initial=2), BOTH),
    layer("LSTM", lstm, 3, arrays(4, 2, lengths=LENGTHS, initial=2, peepholes=True), BOTH, "lengths, peepholes"),
    layer("LSTM", lstm, 3, arrays(4, lengths=LENGTHS, initial=0), label="lengths"), layer("LSTM", lstm, 3, arrays(4, initial=2, peepholes=True), label="peepholes"),
    Sample("LSTM", arrays(4, bias=False, initial=2)[:3] + [None, None, None, None, r(1, 3 * H)], lambda x, w, q, b, n, h, c, p: lstm(x, w, q, p=p), {"hidden_size": H},
           outputs=3, label="peepholes alone"),
    layer("LSTM", lstm, 3, arrays(4, 2, initial=2, layout=1), {**BOTH, "layout": 1}, "layout"),
    *[layer("GRU", gru, 2, arrays(3, **k), {"linear_before_reset": linear}, label) for linear in (0, 1)
      for k, label in (({}, ""), ({"bias": False, "initial": 0}, "bare"), ({"lengths": LENGTHS}, "lengths"), ({"rows": 19}, "several blocks"))],
    *[layer("GRU", gru, 2, arrays(3, 2, lengths=LENGTHS), {**BOTH, "linear_before_reset": linear}, "bidirectional") for linear in (0, 1)],
    layer("GRU", gru, 1, arrays(3), {"direction": "reverse"}), layer("GRU", gru, 2, arrays(3, layout=1), {"layout": 1}, "layout"),
    layer("RNN", rnn, 2, arrays(1)), layer("RNN", rnn, 2, arrays(1, bias=False, initial=0)), layer("RNN", rnn, 1, arrays(1, 2, lengths=LENGTHS), BOTH),
    layer("RNN", rnn, 2, arrays(1), {"activations": ("Relu",)}, "relu", function=relu), layer("RNN", rnn, 2, arrays(1), {"direction": "reverse"}),
    layer("RNN", rnn, 2, arrays(1, layout=1), {"layout": 1}, "layout"),
    *[large_layer("LSTM", lambda *a: lstm(*a)[:2], 4, hidden) for hidden in (29, 140)], large_layer("GRU", gru, 3, 150), large_layer("RNN", rnn, 1, 270),
]


# ---- layers that the kernels do not support

FUNCTIONS = {
    "Affine": lambda x: x, "LeakyRelu": lambda x: np.where(x > 0, x, 0.01 * x), "ThresholdedRelu": lambda x: np.where(x > 1, x, 0), "ScaledTanh": np.tanh,
    "HardSigmoid": hard_sigmoid(), "Elu": lambda x: np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1), "Softsign": lambda x: x / (1 + abs(x)), "Softplus": softplus,
    "Sigmoid": sigmoid,
}
HARD = {"activations": ("HardSigmoid", "Relu")}
SAMPLES += [
    *[layer("RNN", rnn, 2, arrays(1), {"activations": (name,)}, name, function=function) for name, function in FUNCTIONS.items()],
    layer("RNN", rnn, 2, arrays(1), {"activations": ("ScaledTanh",), "activation_alpha": (0.7,), "activation_beta": (1.5,)}, "alpha, beta", function=lambda x: 0.7 * np.tanh(1.5 * x)),
    layer("RNN", rnn, 2, arrays(1), {"activations": ("Affine",), "activation_alpha": (0.7,), "activation_beta": (0.1,)}, "affine", function=lambda x: 0.7 * x + 0.1),
    layer("RNN", rnn, 2, arrays(1), {"activations": ("ThresholdedRelu",), "activation_alpha": (0.3,)}, "threshold", function=lambda x: np.where(x > 0.3, x, 0)),
    layer("LSTM", lstm, 3, arrays(4, initial=2, peepholes=True), {"clip": 0.6}, "clip", clip=0.6), layer("LSTM", lstm, 3, arrays(4, initial=2), {"input_forget": 1}, "coupled", coupled=True),
    layer("LSTM", lstm, 3, arrays(4, 2, lengths=LENGTHS, initial=2, peepholes=True),
          {**BOTH, "activations": ("sigmoid", "softsign", "tanh", "HardSigmoid", "Tanh", "Softsign"), "activation_alpha": (0.3,), "activation_beta": (0.4,)}, "hard backwards",
          functions=(sigmoid, FUNCTIONS["Softsign"], np.tanh, hard_sigmoid(0.3, 0.4), np.tanh, FUNCTIONS["Softsign"])),
    layer("LSTM", lstm, 3, arrays(4, 2, initial=0, layout=1), {**BOTH, "layout": 1, "clip": 0.9}, "layout, clip", clip=0.9), layer("LSTM", lstm, 1, arrays(4)[:3], {"clip": 0.5}, "bare", clip=0.5),
    *[layer("GRU", gru, 2, arrays(3, 2, lengths=LENGTHS), {**BOTH, **HARD, "activations": HARD["activations"] * 2, "linear_before_reset": linear}, "hard",
            functions=(hard_sigmoid(), relu)) for linear in (0, 1)],
    *[layer("GRU", gru, 2, arrays(3, bias=False), {"direction": "reverse", "clip": 0.4, "linear_before_reset": linear}, "clip", clip=0.4) for linear in (0, 1)],
]


# ---- training forms and gradient operators, compared with exact derivatives of the oracles above


def lstm_training(x, w, rec, b, lengths, h0, c0, p=None, own=False):
    """Return the outputs of LSTMTraining in the forward direction: y, h, c, all cell states, all gates (i, o, f, c) after activation."""
    steps, rows, _ = x.shape
    h, c = h0[0].copy(), c0[0].copy()
    y, cells, gates = np.zeros((steps, 1, rows, H)), np.zeros((steps, 1, rows, H)), np.zeros((steps, 1, rows, 4 * H))
    for t in range(steps):
        i, o, f, u = np.split(x[t] @ w[0].T + h @ rec[0].T + b[0][:4 * H] + b[0][4 * H:], 4, axis=1)
        i, f, u = sigmoid(i), sigmoid(f), np.tanh(u)
        c = f * c + i * u
        o = sigmoid(o)
        h = o * np.tanh(c)
        y[t, 0], cells[t, 0], gates[t, 0] = h, c, np.concatenate([i, o, f, u], axis=1)
    shapes = [(1, steps, rows, H), (1, steps, rows, 4 * H)] if own else [cells.shape, gates.shape]
    return y, h[None], c[None], cells.reshape(shapes[0]), gates.reshape(shapes[1])


def gru_training(x, w, rec, b, lengths, h0, own=False):
    steps, rows, _ = x.shape
    h, y, gates = h0[0].copy(), np.zeros((steps, 1, rows, H)), np.zeros((steps, 1, rows, 3 * H))
    for t in range(steps):
        iz, ir, ih = np.split(x[t] @ w[0].T + b[0][:3 * H], 3, axis=1)
        rz, rr, _ = np.split(h @ rec[0].T + b[0][3 * H:], 3, axis=1)
        z, reset = sigmoid(iz + rz), sigmoid(ir + rr)
        u = np.tanh(ih + (reset * h) @ rec[0][2 * H:].T + b[0][5 * H:])
        h = (1 - z) * u + z * h
        y[t, 0], gates[t, 0] = h, np.concatenate([z, reset, u], axis=1)
    return y, h[None], gates.reshape((1, steps, rows, 3 * H) if own else gates.shape)


def complex_step_gradients(function, inputs, gradients, wanted):
    """Return d sum(output · gradient) / d input for the inputs with these indices, by complex-step differentiation, which is exact up to rounding."""
    found = []
    for index in wanted:
        slope = np.zeros(inputs[index].shape)
        for at in np.ndindex(slope.shape):
            moved = [None if v is None else v.astype(complex) for v in inputs]
            moved[index][at] += 1e-30j
            slope[at] = sum((y * g).sum() for y, g in zip(function(*moved), gradients, strict=False)).imag * 1e30
        found.append(slope)
    return tuple(found)


def gate_gradients(layer, inputs, gradients):
    """Return the gradients of the gates before their activations: those of inputs that are projected already, by the weights of one direction."""
    x, w = inputs[:2]
    (found,) = complex_step_gradients(layer, [x @ w[0].T, np.eye(w.shape[1])[None], *inputs[2:]], gradients, (0,))
    return found


def gradient_samples():
    """Yield samples of the training forms and gradient operators in both domains."""
    x, w, q, b, _, h0, c0 = arrays(4, initial=2)
    y, h, c, *_ = lstm_training(x, w, q, b, None, h0, c0)
    dy = [r(*y.shape), r(*h.shape), r(*c.shape)]
    exact = complex_step_gradients(lstm, [x, w, q, b, None, h0, c0], dy, (0, 1, 2, 3, 5, 6))
    exact += None, gate_gradients(lstm, [x, w, q, b, None, h0, c0], dy)
    for domain in (MS, ORTRAIN):
        _, _, _, some_cells, some_gates = lstm_training(x, w, q, b, None, h0, c0, own=domain == ORTRAIN)
        yield Sample("LSTMTraining", [x, w, q, b, None, h0, c0], lambda *a, own=domain == ORTRAIN: lstm_training(*a, own=own), {"hidden_size": H}, domain, 5, gradient=False)
        yield Sample("LSTMGrad", [x, w, q, None, h0, c0, y, some_cells, some_gates, *dy], lambda *_: exact, {"hidden_size": H}, domain, 8, gradient=False)
    x, w, q, b, _, h0 = arrays(3)
    y, h, _ = gru_training(x, w, q, b, None, h0)
    dh = [r(*y.shape), r(*h.shape)]
    slopes = (*complex_step_gradients(gru, [x, w, q, b, None, h0], dh, (0, 1, 2, 3, 5)), gate_gradients(gru, [x, w, q, b, None, h0], dh))
    for domain in (MS, ORTRAIN):
        some = gru_training(x, w, q, b, None, h0, own=domain == ORTRAIN)[2]
        yield Sample("GRUTraining", [x, w, q, b, None, h0], lambda *a, own=domain == ORTRAIN: gru_training(*a, own=own), {"hidden_size": H}, domain, 3, gradient=False)
        yield Sample("GRUGrad", [x, w, q, b, None, h0, y, some, *dh], lambda *_: slopes, {"hidden_size": H}, domain, 6, gradient=False)
    x, w, q, b, _, h0 = arrays(1)
    y, h = rnn(x, w, q, b, None, h0)
    dh2 = [r(*y.shape), r(*h.shape)]
    plain = (*complex_step_gradients(rnn, [x, w, q, b, None, h0], dh2, (0, 1, 2, 3, 5)), gate_gradients(rnn, [x, w, q, b, None, h0], dh2))
    yield Sample("RNNGrad", [x, w, q, None, h0, y, *dh2], lambda *_: plain, {"hidden_size": H}, ORTRAIN, 6, gradient=False)


SAMPLES += list(gradient_samples())


def permuted_samples():
    """Yield samples of layers that write y, and of gradient operators that read y and its gradient, with other orders of axes."""
    perms = {"batch first": (2, 0, 1, 3), "directions beside each other": (0, 2, 1, 3), "directions first": (1, 0, 2, 3)}
    layers = {"LSTM": (lstm, arrays(4, 2, lengths=LENGTHS, initial=2)), "GRU": (gru, arrays(3, 2, lengths=LENGTHS)), "RNN": (rnn, arrays(1, 2, lengths=LENGTHS))}
    for (op_type, (oracle, inputs)), (label, perm) in itertools.product(layers.items(), perms.items()):
        yield Sample(op_type, inputs, lambda *a, oracle=oracle, perm=perm: (oracle(*a, **BOTH)[0].transpose(perm),), {"hidden_size": H, **BOTH, "y_perm": perm},
                     gradient=False, label=label)
    for sample in list(gradient_samples()):
        of_y, of_dy = {"LSTMGrad": (6, 9), "GRUGrad": (6, 8), "RNNGrad": (5, 6)}.get(sample.op_type, (None, None))
        attributes = {**sample.attributes, "y_perm": (2, 0, 1, 3)}
        if of_y is None:
            yield replace(sample, oracle=lambda *a, of=sample.oracle: ((found := of(*a))[0].transpose(2, 0, 1, 3), *found[1:]), attributes=attributes, label="batch first")
        else:
            inputs = list(sample.inputs)
            inputs[of_y], inputs[of_dy] = inputs[of_y].transpose(2, 0, 1, 3), inputs[of_dy].transpose(2, 1, 0, 3)
            yield replace(sample, inputs=inputs, attributes={**attributes, "dy_perm": (2, 1, 0, 3)}, label="batch first")


SAMPLES += list(permuted_samples())
X, W, R = arrays(4)[:3]
REFUSALS = [
    Refusal("LSTM", [X[0], W, R], {"hidden_size": H}), Refusal("LSTM", [X, W[:, :-1], R], {"hidden_size": H}), Refusal("LSTM", [X, W, R, r(1, 3)], {"hidden_size": H}),
    Refusal("LSTM", [X, W, R], {"hidden_size": H, "direction": "sideways"}),
    Refusal("LSTM", [X, W, R], {"hidden_size": H, "activations": ("Cosine", "Tanh", "Tanh")}, match="activations"),
    Refusal("LSTM", [X, W, R], {"hidden_size": H, "activations": ("Tanh", "Tanh")}, match="3 activations"),
    Refusal("LSTMTraining", [X, W, R], {"hidden_size": H, "clip": 3.0}, domain=MS), Refusal("GRUGrad", [X, W, R], {"hidden_size": H, **HARD}, domain=MS, match="neither clip"),
    Refusal("LSTM", [X, W, R], {"hidden_size": H, "y_perm": (0, 1, 3, 2)}, match="ends in 3"), Refusal("LSTM", [X, W, R], {"hidden_size": H, "y_perm": (0, 1)}, match="order"),
    Refusal("LSTM", [X, W, R, None, np.array([1, 2, 3])], {"hidden_size": H}, match="int32"), Refusal("GRU", [X, W, R], {"hidden_size": H}),
]
