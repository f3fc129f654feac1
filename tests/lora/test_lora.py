"""Adapters change nothing until they are trained, train alone, merge into the weights, and are stored as PEFT stores them."""

import json
import sys

import numpy as np
import pytest
from onnx import helper, numpy_helper

from ortrain import InferenceSession, TrainingSession, lora
from ortrain.artifacts import LossType, OptimType
from ortrain.errors import ArtifactNotFoundError, InvalidArgumentError, InvalidModelError, InvalidStateError
from ortrain.formats.onnx_files import to_proto
from ortrain.loading.loader import load_model
from tests.lora.models import CLASSES, WIDTH, WORDS, images, network, quantized

IDS = np.random.default_rng(0).integers(0, WORDS, (6, 4))
IMAGES = np.random.default_rng(1).standard_normal((6, 2, 6, 6)).astype(np.float32)
VECTORS = np.random.default_rng(2).standard_normal((6, 32)).astype(np.float32)
LABELS = np.array([0, 1, 2, 0, 1, 2])
CASES = {"text": (network, IDS, ["all-linear", "embedding"]), "images": (images, IMAGES, ["conv", "head"]), "quantized": (quantized, VECTORS, ["all-linear"])}


def outputs(model, x) -> np.ndarray:
    proto = to_proto(model) if not hasattr(model, "SerializeToString") else model
    return InferenceSession(proto.SerializeToString()).run(None, {proto.graph.input[0].name: x})[0]


def trained(model, x, steps: int = 5) -> TrainingSession:
    """A session whose adapters alone have made a few steps."""
    session = TrainingSession.from_model(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, requires_grad=lora.parameters(model),
                                         learning_rate=0.05)
    for _ in range(steps):
        session.train_step(x, LABELS)
        session.optimizer_step()
        session.lazy_reset_grad()
    return session


@pytest.mark.parametrize("case", CASES)
def test_a_new_adapter_leaves_the_outputs_as_they_are(case):
    make, x, targets = CASES[case]
    np.testing.assert_array_equal(outputs(lora.add(make(), targets, rank=2), x), outputs(make(), x))


@pytest.mark.parametrize("case", CASES)
def test_training_an_adapter_lowers_the_loss_and_changes_no_other_weight(case):
    make, x, targets = CASES[case]
    adapted = lora.add(make(), targets, rank=2, alpha=4)
    session = trained(adapted, x, steps=0)
    before = float(session.eval_step(x, LABELS)[0])
    session = trained(adapted, x, steps=20)
    assert float(session.eval_step(x, LABELS)[0]) < before
    exported = session.inference_model()
    assert set(session.parameters.names()) == set(lora.parameters(adapted))
    for name, array in load_model(make()).graph.initializers.items():
        np.testing.assert_array_equal(exported.graph.initializers[name], array)


@pytest.mark.parametrize("case", ["text", "images"])
def test_a_merged_model_has_the_nodes_of_the_original_and_the_outputs_of_the_adapted_one(case):
    make, x, targets = CASES[case]
    adapted = trained(lora.add(make(), targets, rank=2, alpha=3), x).inference_model()
    merged = lora.merge(adapted)
    original = load_model(make())
    assert [node.op_type for node in merged.graph.nodes] == [node.op_type for node in original.graph.nodes]
    assert {n: a.shape for n, a in merged.graph.initializers.items()} == {n: a.shape for n, a in original.graph.initializers.items()}
    assert np.abs(outputs(adapted, x) - outputs(original, x)).max() > 1e-2
    np.testing.assert_allclose(outputs(merged, x), outputs(adapted, x), rtol=2e-5, atol=2e-6)
    assert lora.adapters(merged) == []


def test_a_removed_adapter_leaves_the_original_model():
    adapted = trained(lora.add(network(), rank=2), IDS).inference_model()
    np.testing.assert_array_equal(outputs(lora.remove(adapted), IDS), outputs(network(), IDS))


def test_adapters_of_quantized_weights_are_not_merged():
    with pytest.raises(InvalidArgumentError, match="quantized"):
        lora.merge(lora.add(quantized(), rank=2))


def test_several_adapters_live_on_one_layer_and_are_removed_one_by_one():
    first = trained(lora.add(network(), "*query*", rank=2), IDS).inference_model()
    both = lora.add(first, ["*query*", "head"], rank=3, name="second", seed=5)
    assert {adapter.name for adapter in lora.adapters(both)} == {"default", "second"}
    session = TrainingSession.from_model(both, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, requires_grad=lora.parameters(both, "second"),
                                         learning_rate=0.05)
    session.train_step(IDS, LABELS)
    session.optimizer_step()
    two = session.inference_model()
    np.testing.assert_allclose(outputs(lora.remove(two, "second"), IDS), outputs(first, IDS), rtol=1e-6)
    np.testing.assert_allclose(outputs(lora.merge(two), IDS), outputs(two, IDS), rtol=2e-5, atol=2e-6)
    half = lora.merge(two, "default")
    assert {adapter.name for adapter in lora.adapters(half)} == {"second"}
    np.testing.assert_allclose(outputs(half, IDS), outputs(two, IDS), rtol=2e-5, atol=2e-6)


def test_only_the_layer_of_a_tied_weight_that_was_adapted_changes_when_merged():
    model = network()
    query = next(node for node in model.graph.node if node.op_type == "MatMul")
    second = type(query)()
    second.CopyFrom(query)
    second.name, second.input[0], second.output[0] = "/block/attention/value/MatMul", "q", "v"
    model.graph.node.insert(2, second)
    model.graph.node[3].input[0] = "v"
    adapted = trained(lora.add(model, "*query", rank=2), IDS).inference_model()
    np.testing.assert_allclose(outputs(lora.merge(adapted), IDS), outputs(adapted, IDS), rtol=2e-5, atol=2e-6)


def test_modules_are_named_by_weights_or_by_nodes_where_weights_have_generic_names():
    modules = [adapter.module for adapter in lora.adapters(lora.add(network(), ["*"], rank=2))]
    assert modules == ["embedding", "block.attention.query", "head"]


def test_dropout_acts_in_training_alone():
    adapted = lora.add(network(), "*query", rank=2, dropout=0.5)
    session = trained(adapted, IDS)
    np.testing.assert_array_equal(session.eval_step(IDS, LABELS)[0], session.eval_step(IDS, LABELS)[0])
    assert "Dropout" in [node.op_type for node in session.training_model.graph.nodes]


@pytest.mark.parametrize("wrong", [{"targets": "*nothing*"}, {"rank": 0}, {"rank": True}, {"alpha": float("nan")}, {"alpha": 0}, {"dropout": 1.0},
                                   {"name": "a.b"}, {"name": ""}])
def test_arguments_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidArgumentError, match="expected"):
        lora.add(network(), **wrong)


def test_a_second_adapter_of_the_same_name_is_refused():
    with pytest.raises(InvalidArgumentError, match="without an adapter named"):
        lora.add(lora.add(network(), rank=2), rank=2)


# ---- files

safetensors = pytest.importorskip("safetensors.numpy")


@pytest.mark.parametrize("case", CASES)
def test_a_saved_adapter_is_loaded_onto_the_original_model(case, tmp_path):
    make, x, targets = CASES[case]
    session = trained(lora.add(make(), targets, rank=2, alpha=4), x)
    lora.save(session, tmp_path / "adapter")
    np.testing.assert_allclose(outputs(lora.load(make(), tmp_path / "adapter"), x), session.predict(x)[0], rtol=1e-5, atol=1e-6)


def test_files_have_the_names_and_layouts_of_peft(tmp_path):
    session = trained(lora.add(network(), ["all-linear", "embedding"], rank=2, alpha=4), IDS)
    lora.save(session, tmp_path)
    arrays = safetensors.load_file(str(tmp_path / "adapter_model.safetensors"))
    assert {name: array.shape for name, array in arrays.items()} == {
        "base_model.model.block.attention.query.lora_A.weight": (2, WIDTH), "base_model.model.block.attention.query.lora_B.weight": (WIDTH, 2),
        "base_model.model.head.lora_A.weight": (2, WIDTH), "base_model.model.head.lora_B.weight": (CLASSES, 2),
        "base_model.model.embedding.lora_embedding_A": (2, WORDS), "base_model.model.embedding.lora_embedding_B": (WIDTH, 2)}
    configuration = json.loads((tmp_path / "adapter_config.json").read_text())
    assert configuration["peft_type"] == "LORA" and configuration["r"] == 2 and configuration["lora_alpha"] == 4


def test_damaged_and_missing_files_are_refused_by_name(tmp_path):
    with pytest.raises(ArtifactNotFoundError, match="adapter_model"):
        lora.load(network(), tmp_path / "nowhere")
    lora.save(trained(lora.add(network(), rank=2), IDS), tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(InvalidModelError, match="cannot be read"):
        lora.load(network(), tmp_path)


def test_an_adapter_of_another_model_is_refused_by_name(tmp_path):
    lora.save(trained(lora.add(network(), "*query", rank=2), IDS), tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"block\.attention\.query"):
        lora.load(images(), tmp_path)


# ---- weights trained in full beside the adapters


def trained_with_head(adapted, x, **more) -> TrainingSession:
    session = TrainingSession.from_model(adapted, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, learning_rate=0.05,
                                         **{"requires_grad": lora.parameters(adapted)} | more)
    for _ in range(5):
        session.train_step(x, LABELS)
        session.optimizer_step()
        session.lazy_reset_grad()
    return session


HEADS = {"text": (network, IDS, "*query", "head.weight"), "images": (images, IMAGES, "conv", "head.weight")}


@pytest.mark.parametrize("case", HEADS)
def test_modules_to_save_are_trained_saved_loaded_and_merged_with_the_adapter(case, tmp_path):
    make, x, targets, weight = HEADS[case]
    adapted = lora.add(make(), targets, rank=2, modules_to_save="head")
    assert weight in lora.parameters(adapted)
    session = trained_with_head(adapted, x)
    trained_weight = session.parameters[weight].data.copy()
    assert np.abs(trained_weight - load_model(make()).graph.initializers[weight]).max() > 0.01
    lora.save(session, tmp_path)
    loaded = lora.load(make(), tmp_path)
    np.testing.assert_allclose(outputs(loaded, x), session.predict(x)[0], rtol=1e-5, atol=1e-6)
    assert lora.parameters(loaded) == lora.parameters(adapted)
    merged = lora.merge(loaded)
    np.testing.assert_array_equal(merged.graph.initializers[weight], trained_weight)
    np.testing.assert_allclose(outputs(merged, x), session.predict(x)[0], rtol=2e-5, atol=2e-6)
    assert not any(key.startswith("ortrain.lora") for key in merged.metadata)


def test_weights_that_a_session_trains_beside_its_adapters_are_saved_without_being_named(tmp_path):
    adapted = lora.add(network(), "*query", rank=2)
    session = trained_with_head(adapted, IDS, requires_grad=[*lora.parameters(adapted), "head.*"])
    lora.save(session, tmp_path)
    np.testing.assert_allclose(outputs(lora.load(network(), tmp_path), IDS), session.predict(IDS)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", HEADS)
def test_modules_to_save_have_the_names_and_layouts_of_peft(case, tmp_path):
    make, x, targets, weight = HEADS[case]
    lora.save(trained_with_head(lora.add(make(), targets, rank=2, modules_to_save=["head"]), x).inference_model(), tmp_path)
    arrays = safetensors.load_file(str(tmp_path / "adapter_model.safetensors"))
    full = {name: array.shape for name, array in arrays.items() if ".lora_" not in name}
    inputs = load_model(make()).graph.initializers[weight].size // CLASSES
    assert full == {"base_model.model.head.weight": (CLASSES, inputs)} | ({"base_model.model.head.bias": (CLASSES,)} if case == "text" else {})
    assert json.loads((tmp_path / "adapter_config.json").read_text())["modules_to_save"] == ["head"]


def test_the_bias_behind_a_matrix_product_has_the_name_of_its_module(tmp_path):
    model = network()
    model.graph.initializer.append(numpy_helper.from_array(np.full(WIDTH, 0.1, np.float32), "onnx::Add_9"))
    model.graph.node[1].output[0] = "product"
    model.graph.node.insert(2, helper.make_node("Add", ["onnx::Add_9", "product"], ["q"]))
    adapted = lora.add(model, "head", rank=2, modules_to_save="query")
    assert lora.parameters(adapted)[2:] == ["onnx::MatMul_7", "onnx::Add_9"]
    session = trained_with_head(adapted, IDS)
    lora.save(session, tmp_path)
    names = set(safetensors.load_file(str(tmp_path / "adapter_model.safetensors")))
    assert {"base_model.model.block.attention.query.weight", "base_model.model.block.attention.query.bias"} < names
    np.testing.assert_allclose(outputs(lora.load(model, tmp_path), IDS), session.predict(IDS)[0], rtol=1e-5, atol=1e-6)


def test_running_statistics_of_a_module_to_save_are_saved_and_not_trained(tmp_path):
    model = images()
    for name, array in {"bn.weight": np.ones(4), "bn.bias": np.zeros(4), "bn.running_mean": np.zeros(4), "bn.running_var": np.ones(4)}.items():
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    model.graph.node[0].output[0] = "convolved"
    model.graph.node.insert(1, helper.make_node("BatchNormalization", ["convolved", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"], ["c"]))
    adapted = lora.add(model, "conv", rank=2, modules_to_save=["bn", "head"])
    assert "bn.running_mean" not in lora.parameters(adapted)
    session = trained_with_head(adapted, IMAGES)
    lora.save(session, tmp_path)
    loaded = lora.load(model, tmp_path)
    assert np.abs(loaded.graph.initializers["bn.running_mean"]).max() > 0.01
    assert lora.parameters(loaded) == lora.parameters(adapted)
    np.testing.assert_allclose(outputs(loaded, IMAGES), session.predict(IMAGES)[0], rtol=1e-5, atol=1e-6)


def test_layers_of_modules_to_save_get_no_adapters():
    assert [adapter.module for adapter in lora.adapters(lora.add(network(), rank=2, modules_to_save="head"))] == ["block.attention.query"]
    with pytest.raises(InvalidArgumentError, match="beside those of modules_to_save"):
        lora.add(network(), "head", rank=2, modules_to_save="head")


def test_modules_to_save_that_name_nothing_are_refused_with_the_modules_there_are():
    with pytest.raises(InvalidArgumentError, match=r"'classifier'.*head"):
        lora.add(network(), "*query", rank=2, modules_to_save="classifier")


def test_weights_in_full_belong_to_their_own_adapter(tmp_path):
    both = lora.add(lora.add(network(), "*query", rank=2, modules_to_save="head"), "*query", rank=2, name="second")
    assert set(lora.parameters(both)) - set(lora.parameters(both, "second")) > {"head.weight", "head.bias"}
    session = trained_with_head(both, IDS)
    lora.save(session, tmp_path, "second")
    assert not any("head" in name for name in safetensors.load_file(str(tmp_path / "adapter_model.safetensors")))


def test_a_head_of_another_size_is_refused_when_an_adapter_is_loaded(tmp_path):
    lora.save(lora.add(network(), "*query", rank=2, modules_to_save="head"), tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    arrays = safetensors.load_file(str(path))
    safetensors.save_file(arrays | {"base_model.model.head.weight": np.zeros((CLASSES + 1, WIDTH), np.float32)}, str(path))
    with pytest.raises(InvalidArgumentError, match=r"head\.weight"):
        lora.load(network(), tmp_path)


@pytest.mark.parametrize("option", [{"use_dora": True}, {"rank_pattern": {"query": 4}}])
def test_adapters_of_kinds_that_are_not_supported_are_refused_instead_of_computed_wrongly(option, tmp_path):
    lora.save(lora.add(network(), "*query", rank=2), tmp_path)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | option))
    with pytest.raises(InvalidArgumentError, match=next(iter(option))):
        lora.load(network(), tmp_path)


def test_the_scale_of_rank_stabilized_adapters_is_that_of_peft(tmp_path):
    lora.save(lora.add(network(), "*query", rank=4, alpha=6), tmp_path)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"use_rslora": True}))
    assert [adapter.scale for adapter in lora.adapters(lora.load(network(), tmp_path))] == [3.0]


def test_without_safetensors_the_extra_that_installs_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for call in (lambda: lora.save(lora.add(network(), rank=2), tmp_path / "new"), lambda: lora.load(network(), tmp_path)):
        with pytest.raises(InvalidStateError, match=r"ortrain\[lora\]"):
            call()
    assert not (tmp_path / "new").exists()
