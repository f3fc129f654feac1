"""Recurrent layers of bfloat16 operands: the oracles round the operands of every product, those of single time steps included, forward and backward."""

import numpy as np
import pytest

from tests.core.test_bfloat16_products import rounded
from tests.ops.harness import run_kernel
from tests.ops.samples import Sample

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
LAYERS = [("LSTM", 37, 41), ("LSTM", 9, 140), ("GRU", 37, 41), ("GRU", 9, 140), ("RNN", 37, 41)]
"""(layer, rows, hidden): several blocks of rows, and of the depth."""
STEPS, INPUTS = 5, 32


def product(a, b):
    """Return the product of operands rounded to bfloat16."""
    return rounded(a).astype(np.float64) @ rounded(b).astype(np.float64)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def forward(layer, x, w, r):
    """Return the states after each step [steps, rows, hidden], the cell states and the gates after activation, None where the layer has none."""
    hidden, inputs = r.shape[1], product(x, w.T)
    h, c, states, cells, gates = *np.zeros((2, x.shape[1], hidden)), [], [], []
    for a in inputs:
        if layer == "LSTM":
            i, o, f, u = np.split(a + product(h, r.T), 4, axis=1)
            i, o, f, u = sigmoid(i), sigmoid(o), sigmoid(f), np.tanh(u)
            c = f * c + i * u
            h = o * np.tanh(c)
            saved = i, o, f, u
        elif layer == "GRU":
            z, reset = np.split(sigmoid(a[:, : 2 * hidden] + product(h, r[: 2 * hidden].T)), 2, axis=1)
            u = np.tanh(a[:, 2 * hidden:] + product(reset * h, r[2 * hidden:].T))
            h = (1 - z) * u + z * h
            saved = z, reset, u
        else:
            h = np.tanh(a + product(h, r.T))
            saved = (h,)
        states.append(h)
        cells.append(c)
        gates.append(np.concatenate(saved, axis=1))
    return np.array(states), np.array(cells), np.array(gates)


def backward(layer, x, w, r, states, cells, gates, dy):
    """Return the gradients of x, w and r from those of the states, `dy`."""
    hidden = r.shape[1]
    before = [np.concatenate([np.zeros_like(values[:1]), values[:-1]]) for values in (states, cells)]
    dh, dc, dgates, candidates = 0, 0, np.zeros_like(gates), np.zeros_like(states)
    for t in reversed(range(len(x))):
        h, c = before[0][t], before[1][t]
        dh = dh + dy[t]
        if layer == "LSTM":
            (i, o, f, u), tanh_c = np.split(gates[t], 4, axis=1), np.tanh(cells[t])
            dc = dc + dh * o * (1 - tanh_c ** 2)
            dgates[t] = np.concatenate([dc * u * i * (1 - i), dh * tanh_c * o * (1 - o), dc * c * f * (1 - f), dc * i * (1 - u ** 2)], axis=1)
            dc, dh = dc * f, product(dgates[t], r)
        elif layer == "GRU":
            z, reset, u = np.split(gates[t], 3, axis=1)
            du = dh * (1 - z) * (1 - u ** 2)
            dreset, candidates[t] = product(du, r[2 * hidden:]), reset * h
            dgates[t] = np.concatenate([dh * (h - u) * z * (1 - z), dreset * h * reset * (1 - reset), du], axis=1)
            dh = dh * z + dreset * reset + product(dgates[t][:, : 2 * hidden], r[: 2 * hidden])
        else:
            dgates[t] = dh * (1 - states[t] ** 2)
            dh = product(dgates[t], r)
    rows, own = dgates.reshape(-1, dgates.shape[2]), 2 * hidden if layer == "GRU" else dgates.shape[2]
    dr = [product(rows[:, :own].T, before[0].reshape(-1, hidden)), product(rows[:, own:].T, candidates.reshape(-1, hidden))]
    return product(dgates, w), product(rows.T, x.reshape(-1, x.shape[2])), np.concatenate(dr)


def error(found, expected):
    """Return the norm of the difference, relative to that of what is expected: a rounded state may change with the last bit of a sum, here and there."""
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


def check(sample, compared):
    """Compare the outputs `compared` of a sample with its oracle, which operands in float32 are far from; any number of workers gives the same bits."""
    found, other = (run_kernel(sample, "float32", workers, tiles=False, precision="bfloat16") for workers in (1, 2))
    in_float32 = run_kernel(sample, "float32")
    for output, expected in zip(compared, sample.oracle(), strict=True):
        assert error(found[output].reshape(expected.shape), expected) < 3e-5
        assert error(in_float32[output].reshape(expected.shape), expected) > 1e-3
        np.testing.assert_array_equal(found[output], other[output])


@pytest.mark.parametrize("layer, rows, hidden", LAYERS)
def test_a_recurrent_layer_rounds_the_operands_of_all_its_products(layer, rows, hidden):
    rng = np.random.default_rng(hidden)
    x = rng.standard_normal((STEPS, rows, INPUTS))
    w, r = (rng.standard_normal((GATES[layer] * hidden, columns)) / columns ** 0.5 for columns in (INPUTS, hidden))
    states, cells, gates = forward(layer, x, w, r)
    check(Sample(layer, [x, w[None], r[None]], lambda: [states], {"hidden_size": hidden}), [0])
    dy = rng.standard_normal(states.shape)
    saved = {"LSTM": [None, None, None, states[:, None], cells[None], gates[None]], "GRU": [None, None, None, states[:, None], gates[None]],
             "RNN": [None, None, states[:, None]]}[layer]
    gradients = backward(layer, x, w, r, states, cells, gates, dy)
    check(Sample(f"{layer}Grad", [x, w[None], r[None], *saved, dy[:, None]], lambda: gradients, {"hidden_size": hidden}, "ortrain", 3), [0, 1, 2])
