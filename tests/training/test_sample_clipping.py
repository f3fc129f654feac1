"""Differential privacy: gradients are sums of the clipped gradients of single samples, and get noise."""

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from benchmarks import measure
from benchmarks.networks import NETWORKS
from ortrain import DifferentialPrivacy, SessionOptions, TrainingSession, errors
from ortrain.loading.loader import as_model
from ortrain.passes.open_batch import opened_shapes

SAMPLES = 6
LIMIT = 0.5


def model_of(text, weights, dtype="float", opset=17):
    """Return a model from its inputs, output and nodes, with random weights in float32 or float64. weights: name -> shape, or the array of a constant."""
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> agraph {text.replace("float[", f"{dtype}[")}')
    rng = np.random.default_rng(0)
    for name, value in weights.items():
        array = value if isinstance(value, np.ndarray) else (0.4 * rng.standard_normal(value)).astype(np.float32)
        made.graph.initializer.append(numpy_helper.from_array(array.astype(np.float64) if dtype == "double" and array.dtype == np.float32 else array, name))
    return made


def private(model, privacy, threads=1, **arguments):
    options = SessionOptions(intra_op_num_threads=threads, enable_winograd=False, differential_privacy=privacy)
    return TrainingSession.from_model(model, **({"loss": "cross-entropy", "optimizer": "sgd"} | arguments), options=options)


def clipping(limit=LIMIT, **settings):
    return DifferentialPrivacy(noise_multiplier=0.0, max_grad_norm=limit, **({"expected_batch_size": SAMPLES} | settings))


def flat_gradient(session):
    (buffer,) = session.gradient_buffers()
    return np.concatenate([buffer.view(name).ravel() for name in buffer.offsets])


def sum_one_by_one(session, batch, limit):
    """Return the sum of the clipped gradients of samples that a session trains on one by one, and their norms."""
    total, norms = 0.0, []
    for i in range(len(batch[0])):
        session.train_step(*[array[i : i + 1] for array in batch])
        gradient = flat_gradient(session).astype(np.float64)
        norms.append(np.sqrt((gradient**2).sum()))
        total += gradient * min(1.0, limit / norms[-1]) if norms[-1] else 0.0
        session.lazy_reset_grad()
    return total, np.array(norms)


def distance(found, expected):
    """Return the length of the difference, relative to what is expected: a norm that is slightly wrong shows in it."""
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


RNG = np.random.default_rng(1)
LABELS = RNG.integers(0, 4, SAMPLES)
TOKENS = RNG.integers(-9, 9, (SAMPLES, 3))


def images(*shape):
    return RNG.standard_normal((SAMPLES, *shape)).astype(np.float32)


MODELS = {
    "dense layers": (
        "(float[n, 7] x) => (float[n, 4] y) {h = Gemm(x, w1, b1) r = Relu(h) y = Gemm<transB = 1, alpha = 0.5, beta = 2.0>(r, w2, b2)}",
        {"w1": (7, 5), "b1": (5,), "w2": (4, 5), "b2": (1, 4)}, (images(7), LABELS)),
    "rows of several samples' positions": (
        """(float[n, 5, 6] x) => (float[n, 4] y)
        {r = Reshape(x, rows) h = MatMul(r, w) a = Add(h, b) p = PRelu(a, s) c = Add(p, b) z = Reshape(c, samples)
         y = ReduceMax<axes = [1], keepdims = 0>(z)}""",
        {"w": (6, 4), "b": (4,), "s": (1, 4), "rows": np.array([-1, 6]), "samples": np.array([-1, 5, 4])}, (images(5, 6), LABELS)),
    "time before samples": (
        """(float[n, 5, 6] x) => (float[n, 4] y)
        {t = Transpose<perm = [1, 0, 2]>(x) h = MatMul(t, w) a = Add(h, b) r = Relu(a) m = ReduceMean<axes = [0], keepdims = 0>(r) y = Gemm(m, v)}""",
        {"w": (6, 5), "b": (5,), "v": (5, 4)}, (images(5, 6), LABELS)),
    "one weight in three layers": (
        "(float[n, 6] x) => (float[n, 6] y) {h = MatMul(x, w) t = Tanh(h) k = MatMul(t, w) s = Mul(k, scale) y = Gemm<transB = 1>(s, w)}",
        {"w": (6, 6), "scale": (1,)}, (images(6), LABELS)),
    "one weight in three shapes": (
        """(float[n, 24] x) => (float[n, 4] y)
        {f = Reshape(w, flat) m = Mul(x, f) p = Slice(m, zero, twelve, one) s = MatMul(p, w) t = Tanh(s) k = MatMul(t, z) q = Slice(m, zero, six, one)
         u = Reshape(w, wide) h = MatMul(q, u) y = Add(h, k)}""",
        {"w": (12, 2), "z": (2, 4), "wide": np.array([6, 4]), "flat": np.array([1, 24]), "zero": np.array([0]), "six": np.array([6]), "twelve": np.array([12]),
         "one": np.array([1])}, (images(24), LABELS)),
    "embedding that is also the last layer, few positions": (
        """(int64[n, 3] ids) => (float[n, 3, 9] y)
        {e = Gather(table, ids) a = Add(e, places) l = LayerNormalization(a, s, b) t = Transpose<perm = [1, 0]>(table) y = MatMul(l, t)}""",
        {"table": (9, 6), "places": (3, 6), "s": (6,), "b": (6,)}, (TOKENS, RNG.integers(0, 9, (SAMPLES, 3)))),
    "embedding that is also the last layer, many positions": (
        """(int64[n, 20] ids) => (float[n, 20, 5] y)
        {e = Gather(table, ids) a = Add(e, places) l = LayerNormalization(a, s, b) t = Transpose<perm = [1, 0]>(table) y = MatMul(l, t)}""",
        {"table": (5, 3), "places": (20, 3), "s": (3,), "b": (3,)}, (RNG.integers(0, 5, (SAMPLES, 20)), RNG.integers(0, 5, (SAMPLES, 20)))),
    "sequences of any length with sliced positions": (
        """(int64[n, time] ids) => (float[n, 4] y)
        {e = Gather(table, ids) shape = Shape(ids) length = Gather(shape, one) p = Slice(places, zero, length, zero) a = Add(e, p) h = MatMul(a, w) r = Relu(h)
         m = ReduceMean<axes = [1], keepdims = 0>(r) y = Gemm(m, v)}""",
        {"table": (9, 6), "places": (12, 6), "w": (6, 5), "v": (5, 4), "one": np.array([1]), "zero": np.array([0])}, (TOKENS, LABELS)),
    "positions that are looked up": (
        """(int64[n, 3] ids) => (float[n, 4] y)
        {e = Gather(table, ids) p = Gather(places, numbers) a = Add(e, p) h = MatMul(a, w) f = Flatten(h) y = MatMul(f, v)}""",
        {"table": (9, 6), "places": (2, 6), "w": (6, 5), "v": (15, 4), "numbers": np.array([0, 1, 0])}, (TOKENS, LABELS)),
    "a transposed table of positions, which are looked up more than once": (
        """(float[n, 4, 3] x) => (float[n, 4] y)
        {p = Gather(table, numbers) t = Transpose(p) a = Add(x, t) q = Transpose(table) r = MatMul(a, w) s = Add(r, q)
         y = ReduceMax<axes = [2], keepdims = 0>(s)}""",
        {"table": (2, 4), "w": (3, 2), "numbers": np.array([0, 1, 0])}, (images(4, 3), LABELS)),
    "convolutions with groups and instance normalization": (
        """(float[n, 4, 9, 9] x) => (float[n, 4] y)
        {h = Conv<group = 2, pads = [1, 0, 1, 2], strides = [2, 1], dilations = [1, 2]>(x, w, b) i = InstanceNormalization(h, s, o) r = Relu(i)
         k = Conv<auto_pad = "SAME_UPPER", strides = [2, 2]>(r, v) p = GlobalAveragePool(k) y = Flatten(p)}""",
        {"w": (6, 2, 3, 3), "b": (6,), "s": (6,), "o": (6,), "v": (4, 6, 3, 3)}, (images(4, 9, 9), LABELS)),
    "transposed convolution and normalization without a mean": (
        """(float[n, 4, 3, 3] x) => (float[n, 4] y)
        {h = ConvTranspose<strides = [2, 2], pads = [0, 1, 1, 0]>(x, w, b) q = Mul(h, h) m = ReduceMean<axes = [-1]>(q) e = Add(m, small) r = Sqrt(e)
         d = Div(h, r) g = Mul(d, s) p = GlobalMaxPool(g) y = Flatten(p)}""",
        {"w": (4, 4, 3, 2), "b": (4,), "s": (5,), "small": np.array(1e-3, np.float32)}, (images(4, 3, 3), LABELS)),
    "a stack of recurrent layers": (
        """(float[n, 5, 3] x) => (float[n, 4] y)
        {t = Transpose<perm = [1, 0, 2]>(x) h = LSTM<hidden_size = 4>(t, w1, r1, b1) a = Squeeze(h, one) g = GRU<hidden_size = 3>(a, w2, r2, b2)
         c = Squeeze(g, one) k, last = RNN<hidden_size = 4, activations = ["Relu"]>(c, w3, r3, b3) z = Squeeze(last, zero) y = MatMul(z, v)}""",
        {"w1": (1, 16, 3), "r1": (1, 16, 4), "b1": (1, 32), "w2": (1, 9, 4), "r2": (1, 9, 3), "b2": (1, 18), "w3": (1, 4, 3), "r3": (1, 4, 4), "b3": (1, 8),
         "v": (4, 4), "one": np.array([1]), "zero": np.array([0])}, (images(5, 3), LABELS)),
    "recurrent layers that read backwards and in both directions": (
        """(float[n, 5, 3] x) => (float[n, 4] y)
        {h, first = GRU<hidden_size = 4, direction = "reverse", linear_before_reset = 1, layout = 1>(x, w1, r1, b1) a = Squeeze(h, two)
         l, last = LSTM<hidden_size = 2, direction = "bidirectional", layout = 1>(a, w2, r2) f = Flatten(last) s = Squeeze(first, one) y = Add(f, s)}""",
        {"w1": (1, 12, 3), "r1": (1, 12, 4), "b1": (1, 24), "w2": (2, 8, 4), "r2": (2, 8, 2), "one": np.array([1]), "two": np.array([2])},
        (images(5, 3), LABELS)),
    "sequences of several lengths with initial states and peepholes": (
        """(float[n, 5, 3] x, int32[n] lengths, float[n, 4] s) => (float[n, 4] y)
        {t = Transpose<perm = [1, 0, 2]>(x) h0 = Unsqueeze(s, zero) c0 = Tanh(h0)
         h, last, cell = LSTM<hidden_size = 4>(t, w, r, b, lengths, h0, c0, p) z = Add(last, cell) y = Squeeze(z, zero)}""",
        {"w": (1, 16, 3), "r": (1, 16, 4), "b": (1, 32), "p": (1, 12), "zero": np.array([0])},
        (images(5, 3), np.array([5, 2, 3, 1, 4, 5], np.int32), images(4), LABELS)),
    "one recurrent layer for two sequences, read in both directions": (
        """(float[n, 5, 3] x, float[n, 5, 3] x2, int32[n] lengths) => (float[n, 4] y)
        {t = Transpose<perm = [1, 0, 2]>(x) t2 = Transpose<perm = [1, 0, 2]>(x2)
         h, last = GRU<hidden_size = 2, direction = "bidirectional">(t, w, r, b, lengths) k = GRU<hidden_size = 2, direction = "bidirectional">(t2, w, r, b)
         m = ReduceMax<axes = [0], keepdims = 0>(k) z = Add(last, m) u = Transpose<perm = [1, 0, 2]>(z) y = Flatten(u)}""",
        {"w": (2, 6, 3), "r": (2, 6, 2), "b": (2, 12)}, (images(5, 3), images(5, 3), np.array([5, 2, 3, 1, 4, 5], np.int32), LABELS)),
}
WIDE = images(300), LABELS
GROUP_NORMALIZATION = """(float[n, 4, 5, 5] x) => (float[n, 4] y)
    {h = Conv<pads = [1, 1, 1, 1]>(x, w) g = GroupNormalization<num_groups = 2>(h, s, o) r = Relu(g) p = GlobalAveragePool(r) y = Flatten(p)}"""
EXPORTED_GROUP_NORMALIZATION = """(float[n, 4, 5, 5] x) => (float[n, 4] y)
    {h = Conv<pads = [1, 1, 1, 1]>(x, w) into = Constant<value_ints = [0, 2, -1]>() ones = Constant<value_floats = [1.0, 1.0]>()
     zeros = Constant<value_floats = [0.0, 0.0]>() q = Reshape(h, into) z = InstanceNormalization(q, ones, zeros) shape = Shape(h) t = Reshape(z, shape)
     m = Mul(t, s) g = Add(m, o) r = Relu(g) p = GlobalAveragePool(r) y = Flatten(p)}"""
each_model = pytest.mark.parametrize("name", MODELS)


@each_model
def test_gradients_are_those_of_samples_one_by_one_clipped_and_added(name):
    text, weights, batch = MODELS[name]
    constants = [key for key, value in weights.items() if isinstance(value, np.ndarray) and value.dtype == np.float32]
    precise = tuple(array.astype(np.float64) if array.dtype == np.float32 else array for array in batch)
    with private(model_of(text, weights, "double"), None, frozen_params=constants) as alone:
        expected, norms = sum_one_by_one(alone, precise, np.inf)
        limit = float(np.median(norms[norms > 0]))                      # some samples are clipped, others not
        expected, _ = sum_one_by_one(alone, precise, limit)
    with private(model_of(text, weights), clipping(limit), frozen_params=constants) as session:
        session.train_step(*batch)
        assert distance(flat_gradient(session), expected / SAMPLES) < 1e-6


@pytest.mark.parametrize(("text", "shape"), [(GROUP_NORMALIZATION, (4,)), (EXPORTED_GROUP_NORMALIZATION, (4, 1, 1))])
def test_group_normalization_by_channels(text, shape):
    weights = {"w": (4, 4, 3, 3), "s": shape, "o": shape}
    batch = images(4, 5, 5), LABELS
    with private(model_of(text, weights, opset=21), None) as alone:
        expected, _ = sum_one_by_one(alone, batch, LIMIT)
    with private(model_of(text, weights, opset=21), clipping()) as session:
        session.train_step(*batch)
        np.testing.assert_allclose(flat_gradient(session), expected / SAMPLES, rtol=1e-3, atol=1e-6)


NETWORKS_OF_SAMPLES = ("vit", "swin", "squeeze-excitation", "densenet", "inception", "convnext", "resnext", "shufflenet", "spectrogram-cnn", "unet",
                       "feature-pyramid", "single-shot-detector", "autoencoder", "text-cnn", "dilated-audio", "mixer", "tabular", "flow",
                       "bilstm-attention")
"""Those of benchmarks.networks whose samples are apart once the scales of batch normalizations are frozen, and that have an array of labels by sample."""


@pytest.mark.parametrize("name", NETWORKS_OF_SAMPLES)
def test_gradients_of_a_network_are_clipped_by_sample(name):
    network, made = NETWORKS[name], NETWORKS[name].make(name, tiny=True)
    statistics = {weight for node in made.model.graph.node if node.op_type == "BatchNormalization" for weight in node.input[1:3]}
    arguments = {"requires_grad": [weight for weight in made.trained if weight not in statistics], "frozen_params": [*made.frozen, *statistics],
                 "input_shapes": opened_shapes(as_model(made.model)), "loss": "mse" if network.loss == measure.MEAN_SQUARED_ERROR else "cross-entropy"}
    batch = network.batches(made, 1)[0]
    with private(made.model, None, **arguments) as alone:
        _, norms = sum_one_by_one(alone, batch, np.inf)
        limit = float(np.median(norms))
        expected, _ = sum_one_by_one(alone, batch, limit)
    with private(made.model, clipping(limit, expected_batch_size=len(batch[0])), **arguments) as session:
        session.train_step(*batch)
        assert distance(flat_gradient(session), expected / len(batch[0])) < 1e-6


def test_gradients_of_a_loss_that_is_a_sum_are_divided_as_well():
    text, weights, batch = MODELS["dense layers"]
    from ortrain.onnxblock import loss

    def of_sum(privacy):
        return private(model_of(text, weights), privacy, loss=loss.CrossEntropyLoss(reduction="sum"))

    with of_sum(None) as alone, of_sum(clipping()) as session:
        expected, _ = sum_one_by_one(alone, batch, LIMIT)
        session.train_step(*batch)
        np.testing.assert_allclose(flat_gradient(session), expected / SAMPLES, rtol=1e-4, atol=1e-6)


def test_sums_are_divided_by_the_expected_batch_size_whatever_the_size_of_the_batch():
    text, weights, batch = MODELS["dense layers"]
    with private(model_of(text, weights), clipping()) as session, private(model_of(text, weights), clipping(expected_batch_size=12)) as other:
        for each in (session, other):
            each.train_step(*[array[:4] for array in batch])
        np.testing.assert_allclose(flat_gradient(session), 2 * flat_gradient(other), rtol=1e-6)


def test_samples_with_small_gradients_are_not_clipped():
    text, weights, batch = MODELS["dense layers"]
    with private(model_of(text, weights), None) as plain, private(model_of(text, weights), clipping(1e3)) as session:
        for each in (plain, session):
            each.train_step(*batch)
        np.testing.assert_allclose(flat_gradient(session), flat_gradient(plain), rtol=1e-4, atol=1e-7)


def test_batches_add_up():
    text, weights, batch = MODELS["dense layers"]
    with private(model_of(text, weights), clipping()) as whole, private(model_of(text, weights), clipping()) as parts:
        whole.train_step(*batch)
        for part in (slice(0, 2), slice(2, SAMPLES)):
            parts.train_step(*[array[part] for array in batch])
        np.testing.assert_allclose(flat_gradient(parts), flat_gradient(whole), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["embedding that is also the last layer, many positions", "convolutions with groups and instance normalization",
                                  "recurrent layers that read backwards and in both directions"])
def test_bits_are_the_same_for_any_number_of_threads(name):
    text, weights, batch = MODELS[name]
    found = []
    for threads in (1, 2, 3):
        with private(model_of(text, weights), clipping(), threads) as session:
            session.train_step(*batch)
            found.append(flat_gradient(session).tobytes())
    assert found[0] == found[1] == found[2]


# ---- noise


def noise_of(privacy, steps=1):
    """Return what optimizer steps change the parameters by, beyond what the clipped gradients do, at a learning rate of 1."""
    model = model_of("(float[n, 300] x) => (float[n, 4] y) {h = Gemm(x, w1, b1) y = Gemm(h, w2)}", {"w1": (300, 200), "b1": (200,), "w2": (200, 4)})
    changes = []
    for settings in (privacy, clipping(privacy.max_grad_norm)):
        with private(model, settings, learning_rate=1.0) as session:
            for _ in range(steps):
                before = session.to_buffer(trainable_only=True).astype(np.float64)
                session.train_step(*WIDE)
                session.optimizer_step()
                session.lazy_reset_grad()
            changes.append(before - session.to_buffer(trainable_only=True))
    return changes[0] - changes[1] if steps == 1 else changes[0]


def test_the_noise_is_normal_with_the_stated_deviation():
    noise = noise_of(DifferentialPrivacy(1.5, 2.0, expected_batch_size=SAMPLES, seed=3))
    deviation = 1.5 * 2.0 / SAMPLES
    assert len(noise) == 61000
    assert abs(noise.mean()) < 4 * deviation / np.sqrt(len(noise))
    assert noise.std() == pytest.approx(deviation, rel=0.015)
    within = [np.mean(abs(noise) < times * deviation) for times in (1, 2)]
    assert within == pytest.approx([0.6827, 0.9545], abs=0.01)


def test_noise_follows_from_the_seed_and_differs_from_step_to_step():
    privacy = DifferentialPrivacy(1.0, 1.0, expected_batch_size=SAMPLES, seed=3)
    first = noise_of(privacy)
    assert np.array_equal(first, noise_of(privacy))
    assert abs(np.corrcoef(first, noise_of(privacy, steps=2))[0, 1]) < 0.05
    assert abs(np.corrcoef(first, noise_of(DifferentialPrivacy(1.0, 1.0, expected_batch_size=SAMPLES)))[0, 1]) < 0.05


def test_noise_is_added_once_for_each_optimizer_step():
    text, weights, batch = MODELS["dense layers"]
    privacy = DifferentialPrivacy(1.0, LIMIT, expected_batch_size=SAMPLES, seed=3)
    with private(model_of(text, weights), privacy, learning_rate=1.0) as session, private(model_of(text, weights), privacy, learning_rate=1.0) as early:
        for each in (session, early):
            each.train_step(*batch)
        early.add_noise()
        noisy = flat_gradient(early)
        early.add_noise()
        assert np.array_equal(noisy, flat_gradient(early))
        for each in (session, early):
            each.optimizer_step()
            each.lazy_reset_grad()
        assert np.array_equal(session.to_buffer(), early.to_buffer())
        for each in (session, early):
            each.train_step(*batch)
            each.optimizer_step()
        assert np.array_equal(session.to_buffer(), early.to_buffer())


def test_noise_is_added_after_every_train_step_whatever_its_number():
    text, weights, batch = MODELS["dense layers"]
    with private(model_of(text, weights), DifferentialPrivacy(1e9, 1e-9, expected_batch_size=SAMPLES)) as session:
        for _ in range(2):                                  # as clients of a federation do, which number their steps anew
            session.train_steps = 7
            session.train_step(*batch)
            session.add_noise()
            assert flat_gradient(session).std() > 0.05
            session.lazy_reset_grad()


def test_frozen_parameters_get_no_noise():
    text, weights, batch = MODELS["dense layers"]
    with private(model_of(text, weights), DifferentialPrivacy(1.0, LIMIT, expected_batch_size=SAMPLES)) as session:
        session.freeze("w1")
        before = {name: array.copy() for name, array in session.state.trainable.items()}
        session.train_step(*batch)
        session.optimizer_step()
        assert {name for name, array in session.state.trainable.items() if np.array_equal(array, before[name])} == {"w1"}


# ---- refusals


REFUSED = {
    "batch normalization": ("(float[n, 4] x) => (float[n, 4] y) {y = BatchNormalization(x, s, b, mean, variance)}",
                            {"s": (4,), "b": (4,), "mean": np.zeros(4, np.float32), "variance": np.ones(4, np.float32)},
                            "group or layer normalization"),
    "a mean over samples": ("(float[n, 4] x) => (float[n, 4] y) {m = ReduceMean<axes = [0]>(x) d = Sub(x, m) y = MatMul(d, w)}", {"w": (4, 4)},
                            "ReduceMean node.*sums over samples"),
    "products of samples": ("(float[n, 4] x) => (float[n, n] y) {h = MatMul(x, w) t = Transpose(h) y = MatMul(h, t)}", {"w": (4, 4)}, "multiplies samples"),
    "a recurrent layer with other activations": ("""(float[n, 3, 4] x) => (float[n, 4] y)
                          {t = Transpose<perm = [1, 0, 2]>(x) h, last = RNN<hidden_size = 4, activations = ["Softplus"]>(t, w, r) y = Squeeze(last, zero)}""",
                          {"w": (1, 4, 4), "r": (1, 4, 4), "zero": np.array([0])}, "Scan node.*not followed into"),
    "sequences of several lengths that are read backwards from an initial state": (
        """(float[n, 3, 4] x, int32[n] lengths, float[n, 4] s) => (float[n, 4] y)
        {t = Transpose<perm = [1, 0, 2]>(x) h0 = Unsqueeze(s, zero) h, last = RNN<hidden_size = 4, direction = "reverse">(t, w, r, b, lengths, h0)
         y = Squeeze(last, zero)}""",
        {"w": (1, 4, 4), "r": (1, 4, 4), "b": (1, 8), "zero": np.array([0])}, "backwards from an initial state"),
    "computed weights": ("(float[n, 4] x) => (float[n, 4] y) {e = Exp(w) y = MatMul(x, e)}", {"w": (4, 4)}, "Exp node.*computes 'e' from parameters"),
    "parts of rows that are looked up": ("(float[n, 4] x) => (float[n, 4] y) {g = Gather(w, rows) p = Slice(g, zero, one, zero) y = Mul(x, p)}",
                                         {"w": (3, 4), "rows": np.array([0, 1, 0]), "zero": np.array([0]), "one": np.array([1])},
                                         "Gather node.*looks them up otherwise"),
    "weights on the left": ("(float[n, 4, 4] x) => (float[n, 4] y) {h = MatMul(w, x) y = ReduceMax<axes = [2], keepdims = 0>(h)}", {"w": (4, 4)},
                            "MatMul node.*on their right"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_are_refused_whose_samples_cannot_be_told_apart(name):
    text, weights, reason = REFUSED[name]
    constants = [key for key, value in weights.items() if isinstance(value, np.ndarray) and value.dtype == np.float32]
    with pytest.raises(errors.PerSampleGradientError, match=reason):
        private(model_of(text, weights), clipping(), frozen_params=constants)


def test_losses_are_refused_that_are_divided_by_what_all_samples_say():
    text, weights, _ = MODELS["dense layers"]
    from ortrain.onnxblock import loss

    with pytest.raises(errors.PerSampleGradientError, match='take the reduction "sum"'):
        private(model_of(text, weights), clipping(), loss=loss.CrossEntropyLoss(ignore_index=-1))


def test_losses_are_refused_that_have_a_term_of_weights_alone():
    text = """(float[n, 4] x) => (float loss)
    {y = MatMul(x, w) m = ReduceMean<keepdims = 0>(y) p = ReduceSum<keepdims = 0>(w) loss = Add(m, p)}"""
    with pytest.raises(errors.PerSampleGradientError, match="adds a term to the loss"):
        private(model_of(text, {"w": (4, 4)}), clipping(), loss=None)


def test_fixed_batches_are_refused_with_the_remedy():
    text, weights, _ = MODELS["dense layers"]
    with pytest.raises(errors.PerSampleGradientError, match=r"input 'x'.*input_shapes"):
        private(model_of(text.replace("[n,", "[6,"), weights), clipping())


@pytest.mark.parametrize("options", [{"optimizer_in_backward": True}, {"precision": "bfloat16"}])
def test_sessions_whose_gradients_are_not_kept_or_not_exact_are_refused(options):
    text, weights, _ = MODELS["dense layers"]
    with pytest.raises(errors.InvalidArgumentError, match=next(iter(options))):
        TrainingSession.from_model(model_of(text, weights), loss="cross-entropy", optimizer="sgd",
                                   options=SessionOptions(**options, differential_privacy=clipping()))


def test_gradients_of_positions_that_cancel_each_other_are_survived():
    model = model_of("(float[n, 3, 64] x) => (float[n, 64] y) {h = MatMul(x, w) y = ReduceSum<keepdims = 0>(h, one)}", {"w": (64, 64), "one": np.array([1])})
    x = RNG.standard_normal((SAMPLES, 2, 64)).astype(np.float32)
    with private(model, clipping()) as session:
        session.train_step(np.concatenate([x, -x.sum(1, keepdims=True)], 1), LABELS)
        assert np.isfinite(flat_gradient(session)).all()


def test_buckets_of_gradients_without_noise_are_refused():
    text, weights, _ = MODELS["dense layers"]
    with private(model_of(text, weights), clipping()) as session, pytest.raises(errors.InvalidArgumentError, match="which have no noise yet"):
        session.on_gradients_ready(print)


def test_a_train_step_needs_the_expected_batch_size():
    text, weights, batch = MODELS["dense layers"]
    with private(model_of(text, weights), clipping(expected_batch_size=None)) as session, pytest.raises(errors.InvalidStateError, match="expected_batch_size"):
        session.train_step(*batch)


def test_noise_belongs_to_private_sessions():
    text, weights, _ = MODELS["dense layers"]
    with private(model_of(text, weights), None) as session, pytest.raises(errors.InvalidStateError, match="differential_privacy"):
        session.add_noise()


@pytest.mark.parametrize("settings", [{"noise_multiplier": -1.0}, {"noise_multiplier": float("nan")}, {"max_grad_norm": 0.0}, {"max_grad_norm": True},
                                      {"expected_batch_size": 0}, {"expected_batch_size": 2.5}, {"seed": -1}])
def test_settings_are_checked(settings):
    (name,) = settings
    with pytest.raises((errors.ArgumentTypeError, errors.InvalidArgumentError), match=name):
        DifferentialPrivacy(**({"noise_multiplier": 1.0, "max_grad_norm": 1.0} | settings))
