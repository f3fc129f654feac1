"""Program templates: programs specialized to new sizes are bitwise equal to programs planned for these sizes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import ortrain.runtime.runner
from ortrain import InferenceSession, SessionOptions, TrainingSession, errors
from ortrain._core.program_layout import layout_of
from ortrain._core.symbolic import SymbolicInt, size_hint
from ortrain.artifacts import LossType, OptimType
from ortrain.runtime.runner import Runner
from tests.test_deferred_gradients import assert_same
from tests.test_optimizer_in_backward import dense_layers
from tests.test_rematerialization import residual_blocks

RNG = np.random.default_rng(7)


def with_symbolic_rows(model):
    """Return the model with a symbolic first dimension."""
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim[0].dim_param = "rows"
    return model


def small():
    return dense_layers(16, 32, 32, 4)


def large():
    """Large enough for deferred gradients, some of them uncomputed."""
    return dense_layers(96, 640, 512, 4)


def convolutional():
    return with_symbolic_rows(residual_blocks(16, 2))


def biased():
    """A layer with a separate bias, which needs no broadcast for a single row."""
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float[n, 16] x) => (float[n, 4] y) { z = MatMul(x, w) y = Add(z, b) }')
    rng = np.random.default_rng(8)
    for name, shape in (("w", (16, 4)), ("b", (4,))):
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    return model


def branching():
    """Convolutions by Winograd's algorithm, and what depends on the batch only by passing it on: concatenations, an enlargement, windows that are moved."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]> g (float[n, 3, 8, 8] x) => (float[n, 4] y) {
        scales = Constant<value_floats=[1.0, 1.0, 2.0, 2.0]>() windows = Constant<value_ints=[-1, 32, 4, 4, 4, 4]>() one = Constant<value_ints=[1]>()
        tokens = Constant<value_ints=[-1, 16, 32]>() pairs = Constant<value_ints=[-1, 256, 8]>()
        a = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(x, aw) b = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(a, bw) r = Relu(b)
        s = Resize<mode="nearest">(r, , scales) t = Resize<mode="linear">(r, , scales) both = Concat<axis=1>(s, t)
        w = Reshape(both, windows) moved = Transpose<perm=[0, 2, 4, 3, 5, 1]>(w) flat = Reshape(moved, tokens) v = MatMul(flat, vw)
        back = Reshape(v, pairs) first, second = Split<axis=1, num_outputs=2>(back) c = Concat<axis=-1>(second, first) m = ReduceMean<keepdims=0>(c, one)
        y = Gemm(m, yw, yb) }""")
    rng = np.random.default_rng(10)
    for name, shape in (("aw", (16, 3, 3, 3)), ("bw", (16, 16, 3, 3)), ("vw", (32, 8)), ("yw", (16, 4)), ("yb", (4,))):
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 4, name))
    return model


def paired():
    """Products both of whose operands have the batch, as in attention that is not scaled."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]> g (float[n, 6, 16] x) => (float[n, 4] y) {
        one = Constant<value_ints=[1]>() a = MatMul(x, w) t = Transpose<perm=[0, 2, 1]>(x) s = MatMul(a, t) e = Tanh(s) c = MatMul(e, x)
        m = ReduceMean<keepdims=0>(c, one) y = MatMul(m, v) }""")
    rng = np.random.default_rng(11)
    for name, shape in (("w", (16, 16)), ("v", (16, 4))):
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 4, name))
    return model


HEADS, WIDTH = 2, 16
ATTENTION = [
    "shape = Shape(ids) batch = Gather(shape, zero) length = Gather(shape, one) p = Slice(positions, zero, length, zero) e = Gather(words, ids) x = Add(e, p)",
    "n = LayerNormalization(x, scale, shift) split = Concat<axis=0>(batch, length, heads, rest) whole = Concat<axis=0>(batch, length, rest)",
    *(f"{name}m = MatMul(n, {name}w) {name}r = Reshape({name}m, split) {name} = Transpose<perm=[{order}]>({name}r)"
      for name, order in (("q", "0,2,1,3"), ("k", "0,2,3,1"), ("v", "0,2,1,3"))),
    "s = MatMul(q, k) a = Softmax<axis=-1>(s) c = MatMul(a, v) ct = Transpose<perm=[0,2,1,3]>(c) cr = Reshape(ct, whole) o = MatMul(cr, ow) z = Add(x, o)",
    "m = ReduceMean<keepdims=0>(z, one) y = MatMul(m, classes)"]
"""A transformer layer as exporters write it, with shapes computed from those of its input."""


def attention():
    """A model with symbolic number and length of texts, and the names of its weights."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> g (int64[texts, words] ids) => (float[texts, 4] y) {{ {" ".join(ATTENTION)} }}')
    rng = np.random.default_rng(9)
    whole = {"zero": [0], "one": [1], "heads": [HEADS], "rest": [-1]}
    shapes = {"words": (50, WIDTH), "positions": (200, WIDTH), "scale": (WIDTH,), "shift": (WIDTH,), "classes": (WIDTH, 4),
              **{f"{name}w": (WIDTH, WIDTH) for name in "qkvo"}}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) / 4 for name, shape in shapes.items()}
    for name, array in (arrays | {name: np.array(value, np.int64) for name, value in whole.items()}).items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model, list(shapes)


MODELS = {small: (16,), large: (96,), convolutional: (3, 16, 16), biased: (16,), branching: (3, 8, 8), paired: (6, 16)}
models = pytest.mark.parametrize("network", MODELS)


def rows(network, count):
    return RNG.standard_normal((count, *MODELS[network])).astype(np.float32), RNG.integers(0, 4, count)


def session_of(model, optimizer=OptimType.AdamW, **options):
    statistics = {name for node in model.graph.node if node.op_type == "BatchNormalization" for name in node.input[3:]}
    names = [tensor.name for tensor in model.graph.initializer if tensor.name not in statistics]
    return TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=optimizer, requires_grad=names, options=SessionOptions(**options))


def without_templates(session):
    """Make a session plan a program for every shape, and return it."""
    session._train_runner._open_axes = lambda kinds: {}
    return session


def train(session, batch):
    """Run one train step and one optimizer step; return the bytes of the loss."""
    loss = session.train_step(*batch)[0].tobytes()
    session.optimizer_step()
    session.lazy_reset_grad()
    return loss


@pytest.fixture
def plans(monkeypatch):
    """A list of the input types of all plans made."""
    seen = []

    def recording_plan(model, inputs, *arguments, **options):
        seen.append(inputs)
        return plan(model, inputs, *arguments, **options)

    plan = ortrain.runtime.runner.plan_program
    monkeypatch.setattr(ortrain.runtime.runner, "plan_program", recording_plan)
    return seen


@models
@pytest.mark.parametrize("options", [{}, {"intra_op_num_threads": 2}, {"optimizer_in_backward": True}, {"rematerialization": 1.0}], ids=str)
def test_training_on_many_sizes_equals_plans_per_size(network, options):
    specialized, planned = session_of(network(), **options), without_templates(session_of(network(), **options))
    for count in (8, 5, 8, 12, 33, 2, 1, 40, 5, 6):
        batch = rows(network, count)
        assert train(specialized, batch) == train(planned, batch)
    assert_same(specialized, planned)


@models
def test_accumulated_gradients_of_several_sizes_equal_plans_per_size(network):
    specialized, planned = session_of(network()), without_templates(session_of(network()))
    for counts in ((8, 5), (9, 3, 4), (20, 2)):
        for session in (specialized, planned):
            rng = np.random.default_rng(3)
            for count in counts:
                session.train_step(rng.standard_normal((count, *MODELS[network])).astype(np.float32), rng.integers(0, 4, count))
            session.optimizer_step()
            session.lazy_reset_grad()
    assert_same(specialized, planned)


@pytest.mark.parametrize("network", [small, large, convolutional, biased])
def test_a_specialized_program_equals_the_planned_one(network):
    specialized, planned = session_of(network()), without_templates(session_of(network()))
    for session in (specialized, planned):
        for count in (8, 6):
            session.train_step(*rows(network, count))
    specialized.eval_step(*rows(network, 6))
    specialized._train_runner.run(rows(network, 6))           # the slow path, which sets `last`
    assert specialized._train_runner.last.template is not None
    assert layout_of(specialized._train_runner.last) == layout_of(planned._train_runner.last)
    assert str(specialized._train_runner.last.plan) == str(planned._train_runner.last.plan)


def test_two_symbolic_dimensions_equal_plans_per_size(plans):
    model, names = attention()
    specialized, planned = (TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, requires_grad=names) for _ in range(2))
    without_templates(planned)
    for texts, length in ((8, 32), (8, 31), (7, 32), (5, 47), (3, 130), (8, 32), (1, 9), (9, 1), (6, 40)):
        batch = RNG.integers(0, 50, (texts, length)), RNG.integers(0, 4, texts)
        assert train(specialized, batch) == train(planned, batch), (texts, length)
    assert_same(specialized, planned)
    symbolic = [inputs for inputs in plans if type(inputs["ids"].shape[0]) is not int]
    assert len(symbolic) == 1


@pytest.mark.parametrize(("network", "counts"), [(small, (32, 31, 2, 100, 7, 500, 3)), (branching, (32, 31, 1, 2, 16)), (branching, (1, 2, 3)),
                                                 (paired, (16, 1, 2, 9)), (paired, (1, 5, 3))])
def test_sizes_with_equal_decisions_are_planned_once(plans, network, counts):
    session = session_of(network())
    for count in counts:
        session.train_step(*rows(network, count))
    assert len(plans) == 1


def test_a_mean_over_the_batch_is_planned_once(plans):
    """The number of elements that the loss is divided by is a symbolic size."""
    sessions = [TrainingSession.from_model(small(), loss=LossType.MSELoss, optimizer=OptimType.AdamW) for _ in range(2)]
    specialized, planned = sessions[0], without_templates(sessions[1])
    for count in (8, 7, 1, 2, 9, 40):
        batch = rows(small, count)[0], RNG.standard_normal((count, 4)).astype(np.float32)
        assert train(specialized, batch) == train(planned, batch)
    assert_same(specialized, planned)
    assert [type(inputs["x0"].shape[0]) for inputs in plans].count(SymbolicInt) == 1


def test_memory_decisions_are_not_repeated_while_the_arena_suffices(plans):
    counts = (32, 600, 2000, 16, 511, 512)                # 512 rows and more justify another order of the steps
    session, planned = session_of(small()), without_templates(session_of(small()))
    for count in counts:
        batch = rows(small, count)
        assert train(session, batch) == train(planned, batch)
    assert_same(session, planned)
    assert len(plans) == 1 + len(counts)


def test_memory_decisions_are_repeated_when_a_larger_arena_is_needed(plans, monkeypatch):
    monkeypatch.setattr(ortrain.runtime.runner, "MIN_ARENA", 0)
    session = session_of(small())
    for count in (32, 600, 33, 599):
        session.train_step(*rows(small, count))
    assert [size_hint(inputs["labels"].shape[0]) for inputs in plans] == [32, 600]


@models
def test_results_do_not_depend_on_earlier_sizes(network):
    """Earlier sizes determine which memory decisions are reused."""
    large_count = 60 if network is convolutional else 600
    sessions = [session_of(network()) for _ in range(2)]
    for session, before in zip(sessions, ((2, large_count), (large_count, 2)), strict=True):
        for count in before:
            session.train_step(*rows(network, count))
            session.lazy_reset_grad()
    for count in (2, large_count, 9, 40):
        batch = rows(network, count)
        assert train(sessions[0], batch) == train(sessions[1], batch)
    for name, array in sessions[0].state.trainable.items():
        np.testing.assert_array_equal(array, sessions[1].state.trainable[name], err_msg=name)


def test_evaluation_and_inference_are_planned_once(plans):
    session, inference = session_of(small()), InferenceSession(small())
    for count in (32, 31, 2, 100):
        x, labels = rows(small, count)
        session.eval_step(x, labels)
        scores = session.predict(x)[0]
        np.testing.assert_allclose(inference.run(None, {"x0": x})[0], scores, rtol=1e-5, atol=1e-6)
        assert scores.shape == (count, 4)
    assert len(plans) == 3


@pytest.mark.parametrize("counts", [(8, 1, 9, 1, 10), (1, 8, 1, 9)])
def test_a_single_row_reuses_the_template(plans, counts):
    session, planned = session_of(biased()), without_templates(session_of(biased()))
    for count in counts:
        batch = rows(biased, count)
        assert train(session, batch) == train(planned, batch)
    assert_same(session, planned)
    assert [type(inputs["labels"].shape[0]) for inputs in plans].count(SymbolicInt) == 1


@pytest.mark.parametrize(("reader", "shape_of_one", "shape_of_more", "n_plans"), [
    ("ReduceSum<keepdims=1, noop_with_empty_axes=1>", (1, 2), (1, 2), 1), ("ReduceSum<keepdims=1>", (1, 1), (1, 2), 3),
    ("ReduceSum<keepdims=0, noop_with_empty_axes=1>", (1, 2), (2,), 3), ("Unsqueeze", (1, 2), (1, 5, 2), 3)])
def test_models_that_expose_broadcast_axes_are_planned_per_size(plans, reader, shape_of_one, shape_of_more, n_plans):
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> g (float[n, 2] x) => (y) {{
        shape = Shape(x) axes, others = com.microsoft.BroadcastGradientArgs(spread, shape) y = {reader}(x, axes) }}""")
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 2]), "spread"))
    inference = InferenceSession(model)
    shapes = [inference.run(None, {"x": np.ones((count, 2), np.float32)})[0].shape for count in (4, 1, 5)]
    assert shapes[1:] == [shape_of_one, shape_of_more]
    assert len(plans) == n_plans


def test_more_sizes_than_cached_programs(plans):
    session, planned = session_of(small()), without_templates(session_of(small()))
    for count in (*range(2, 60), *range(2, 60)):
        batch = rows(small, count)
        assert session.train_step(*batch)[0].tobytes() == planned.train_step(*batch)[0].tobytes()
    assert len([inputs for inputs in plans if type(inputs[session._train_runner.inputs[0]].shape[0]) is not int]) == 1


def test_sizes_that_need_plans_of_their_own_are_planned_once(plans):
    """The positions become a constant whose length is the symbolic size, so no template holds for another length."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) {
        shape = Shape(x) length = Squeeze(shape) places = Range(zero, length, one) numbers = Cast<to=1>(places) y = Mul(x, numbers) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(np.array(value, np.int64), name) for name, value in (("zero", 0), ("one", 1)))
    inference = InferenceSession(model)
    for length in (*range(2, 22), *range(2, 22)):
        np.testing.assert_array_equal(inference.run(None, {"x": np.ones(length, np.float32)})[0], np.arange(length))
    assert len(plans) == 20


def test_an_invalid_label_at_a_new_size_is_rejected_without_side_effects():
    session = session_of(small())
    session.train_step(*rows(small, 8))
    session.optimizer_step()
    session.lazy_reset_grad()
    before = {name: array.copy() for name, array in session.state.trainable.items()}
    x, labels = rows(small, 6)
    labels[5] = 4
    with pytest.raises(errors.LabelRangeError, match=r"in \[0, 4\), got 4"):
        session.train_step(x, labels)
    assert session.gradients_valid
    for name, array in session.state.trainable.items():
        np.testing.assert_array_equal(array, before[name])
    labels[5] = 3
    session.train_step(x, labels)


@pytest.mark.parametrize(("x", "labels", "error"), [
    ((6, 16), (5,), errors.InputShapeError), ((6, 15), (6,), errors.InputShapeError), ((6, 16, 1), (6,), errors.InputRankError),
    ((0, 16), (0,), errors.EmptyBatchError)])
def test_inconsistent_input_shapes_are_rejected(x, labels, error):
    session = session_of(small())
    session.train_step(*rows(small, 8))
    with pytest.raises(error):
        session.train_step(np.zeros(x, np.float32), np.zeros(labels, np.int64))
    session.train_step(*rows(small, 6))


def test_inputs_of_other_types_and_layouts_take_the_slow_path():
    session, other = session_of(small()), session_of(small())
    x, labels = rows(small, 6)
    session.train_step(*rows(small, 8))
    first = session.train_step(np.asfortranarray(x), labels[::-1][::-1])
    assert first[0].tobytes() == other.train_step(x, labels)[0].tobytes()
    assert session.train_step(x.tolist(), labels)[0].shape == ()


def test_a_profile_of_a_specialized_program_has_its_costs():
    session, planned = session_of(small()), without_templates(session_of(small()))
    costs = []
    for profiled in (session, planned):
        profiled.train_step(*rows(small, 8))
        with profiled.profile() as profile:
            profiled.train_step(*rows(small, 24))
        costs.append([(row.operations, row.bytes) for row in profile.steps])
    assert costs[0] == costs[1]


def test_the_plan_of_a_specialized_program_has_its_rematerialized_steps():
    """Rematerialization was decided for another size: the plan shown is that of the program, not the one that would be planned for its size."""
    session = session_of(convolutional(), rematerialization=1.0)
    for count in (8, 6):
        session.train_step(*rows(convolutional, count))
    session._train_runner.run(rows(convolutional, 6))
    program = session._train_runner.last
    assert len(program.plan.steps) == len(program.step_names)
    assert all(type(size) is int for kind in program.plan.types.values() for size in kind.shape)


def test_operators_in_python_are_planned_with_ints(plans):
    seen = []

    def infer(inputs):
        ((dtype, shape),) = inputs
        seen.extend(size for size in shape if not isinstance(size, str))
        return [(dtype, shape)]

    ortrain.register_operator("test.sizes", "Doubled", lambda x: x * 2, infer=infer)
    text = '<ir_version: 8, opset_import: ["" : 17, "test.sizes" : 1]> g (float[n, 3] x) => (float[n, 3] y) { y = test.sizes.Doubled(x) }'
    inference = InferenceSession(onnx.parser.parse_model(text))
    for count in (4, 2):
        x = np.ones((count, 3), np.float32)
        np.testing.assert_array_equal(inference.run(None, {"x": x})[0], x * 2)
    assert [inputs["x"].shape for inputs in plans if type(inputs["x"].shape[0]) is int] == [(4, 3), (2, 3)]
    assert seen and all(type(size) is int for size in seen)


def test_planning_falls_back_to_ints_if_symbolic_sizes_fail(monkeypatch):
    def fail(self, kinds, axes):
        raise TypeError("expected an int")

    monkeypatch.setattr(Runner, "_plan_for_all", fail)
    session, planned = session_of(small()), without_templates(session_of(small()))
    for count in (8, 5):
        batch = rows(small, count)
        assert session.train_step(*batch)[0].tobytes() == planned.train_step(*batch)[0].tobytes()
