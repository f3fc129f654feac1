"""A damaged or malformed model is refused with an error of ortrain that names the place, wherever it is read."""

import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortrain
from ortrain.artifacts import LossType, OptimType
from ortrain.doctor import ERROR, examine
from ortrain.errors import InvalidArgumentError, InvalidModelError, OrtrainError, ShapeInferenceError
from ortrain.loading.loader import load_model
from tests.test_open_batch import MODELS


def linear(**changes):
    """The bytes of y = MatMul(x, w), with text in the file replaced: `changes` is old=new, of one length."""
    graph = helper.make_graph([helper.make_node("MatMul", ["xxxx", "wwww"], ["yyyy"], name="nnnn")], "gggg",
                              [helper.make_tensor_value_info("xxxx", TensorProto.FLOAT, ["dddd", 4])],
                              [helper.make_tensor_value_info("yyyy", TensorProto.FLOAT, ["dddd", 3])],
                              [numpy_helper.from_array(np.ones((4, 3), np.float32), "wwww")])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="pppp").SerializeToString()
    for old, new in changes.items():
        assert old.encode() in data and len(new) == len(old)
        data = data.replace(old.encode(), new)
    return data


def refused_everywhere(data, folder, error=InvalidModelError):
    """Return the message with which load_model, from_model and the doctor refuse a model."""
    with pytest.raises(error) as loading:
        load_model(data)
    with pytest.raises(error):
        ortrain.TrainingSession.from_model(data, loss=LossType.MSELoss, optimizer=OptimType.AdamW)
    (folder / "model.onnx").write_bytes(data)
    (finding,) = examine(folder / "model.onnx")
    assert finding.severity == ERROR and str(loading.value) in finding.reason
    return str(loading.value)


@pytest.mark.parametrize(("text", "place"), [("MatMul", "the operator of node 'nnnn'"), ("xxxx", "an input|a value|a graph input"), ("wwww", "an initializer"),
                                             ("nnnn", "the name of node"), ("gggg", "the name of a graph"), ("dddd", "the name of a dimension"),
                                             ("yyyy", "an output|a value|a graph output"), ("pppp", "the producer's name")])
def test_text_that_is_not_utf8_is_refused_with_its_place(text, place, tmp_path):
    message = refused_everywhere(linear(**{text: b"\xff" + text.encode()[1:]}), tmp_path)
    assert "UTF-8" in message and any(part in message for part in place.split("|")), message


def test_an_input_without_a_type_is_refused_with_its_name(tmp_path):
    proto = onnx.load_from_string(linear())
    proto.graph.input[0].ClearField("type")
    assert "graph input 'xxxx'" in refused_everywhere(proto.SerializeToString(), tmp_path)


def test_functions_that_cannot_be_inlined_are_refused(tmp_path):
    proto = onnx.load_from_string(linear())
    proto.graph.node[0].op_type, proto.graph.node[0].domain = "Circle", "own"
    proto.opset_import.append(helper.make_opsetid("own", 1))
    body = [helper.make_node("Circle", ["a", "b"], ["c"], domain="own")]
    proto.functions.append(helper.make_function("own", "Circle", ["a", "b"], ["c"], body, [helper.make_opsetid("own", 1)]))
    with pytest.raises(OrtrainError):
        load_model(proto.SerializeToString())
        ortrain.TrainingSession.from_model(proto.SerializeToString(), loss=LossType.MSELoss, optimizer=OptimType.AdamW)


def test_an_operator_of_a_later_opset_is_refused():
    proto = onnx.load_from_string(linear())
    proto.opset_import[0].version = 10
    proto.graph.node[0].CopyFrom(helper.make_node("MelWeightMatrix", ["wwww"] * 5, ["yyyy"]))
    with pytest.raises(ShapeInferenceError, match="of opset 10"):
        ortrain.TrainingSession.from_model(proto.SerializeToString(), loss=LossType.MSELoss, optimizer=OptimType.AdamW)


def test_an_operator_with_a_graph_that_it_does_not_have_is_refused():
    proto = onnx.load_from_string(linear())
    proto.graph.node[0].attribute.append(helper.make_attribute("then_branch", helper.make_graph([], "inner", [], [])))
    with pytest.raises(OrtrainError):
        ortrain.TrainingSession.from_model(proto.SerializeToString(), loss=LossType.MSELoss, optimizer=OptimType.AdamW)


def test_a_loss_of_text_is_refused():
    proto = onnx.load_from_string(linear())
    proto.graph.input[0].type.tensor_type.elem_type = proto.graph.output[0].type.tensor_type.elem_type = TensorProto.STRING
    proto.graph.node[0].CopyFrom(helper.make_node("Identity", ["xxxx"], ["yyyy"]))
    with pytest.raises(InvalidArgumentError, match="got text"):
        ortrain.TrainingSession.from_model(proto.SerializeToString(), loss=LossType.MSELoss)


# ---- random damage

INTEGERS = [0, 1, -1, 2, -2, 7, 2**31, 2**40, -(2**63), 2**63 - 1]
OPERATORS = sorted({schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""})


def damaged_bytes(data, generator):
    """Change, delete or insert some bytes."""
    damaged = bytearray(data)
    for _ in range(generator.choice((1, 2, 8))):
        place, kind = generator.randrange(len(damaged)), generator.randrange(4)
        if kind < 2:
            damaged[place] = generator.randrange(256)
        elif kind == 2:
            del damaged[place : place + generator.randrange(1, 9)]
        else:
            damaged[place:place] = bytes(generator.randrange(256) for _ in range(3))
    return bytes(damaged)


def damaged_model(proto, generator):
    """Change a node, an attribute, a constant or a type of a model, so that the file stays readable."""
    damaged = onnx.ModelProto()
    damaged.CopyFrom(proto)
    graph, kind = damaged.graph, generator.randrange(9)
    node, value = generator.choice(graph.node), generator.choice([*graph.input, *graph.output])
    if kind == 0:
        node.op_type = generator.choice(OPERATORS)
    elif kind == 1 and node.input:
        del node.input[generator.randrange(len(node.input))]
    elif kind == 2 and node.input:
        node.input[generator.randrange(len(node.input))] = generator.choice([name for other in graph.node for name in other.input])
    elif kind == 3 and node.attribute:
        attribute = generator.choice(node.attribute)
        attribute.type = generator.randrange(14) if generator.randrange(3) == 0 else attribute.type
        attribute.i = generator.choice(INTEGERS)
        if attribute.ints:
            attribute.ints[generator.randrange(len(attribute.ints))] = generator.choice(INTEGERS)
    elif kind == 4 and graph.initializer:
        tensor = generator.choice(graph.initializer)
        array = numpy_helper.to_array(tensor)
        changes = (array.astype(np.float64), array.astype(np.int64), array.reshape(-1), array[..., None], np.array(array.size))
        tensor.CopyFrom(numpy_helper.from_array(generator.choice(changes), tensor.name))
    elif kind == 5 and graph.initializer:
        integers = [tensor for tensor in graph.initializer if tensor.data_type == TensorProto.INT64]
        if integers:
            tensor = generator.choice(integers)
            array = numpy_helper.to_array(tensor).copy()
            array.reshape(-1)[:1] = generator.choice(INTEGERS)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    elif kind == 6:
        damaged.opset_import[0].version = generator.choice([-1, 0, 6, 7, 9, 11, 13, 18, 21, 99])
    elif kind == 7:
        value.type.tensor_type.elem_type = generator.randrange(25)
    else:
        value.ClearField("type")
    return damaged.SerializeToString()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", MODELS)
def test_random_damage_is_refused_by_an_error_of_ortrain_or_harmless(name, tmp_path):
    proto = MODELS[name](batch=1)
    data, generator = proto.SerializeToString(), random.Random(name)
    for attempt in range(40):
        damaged = damaged_bytes(data, generator) if attempt % 2 else damaged_model(proto, generator)
        (tmp_path / "model.onnx").write_bytes(damaged)
        assert all(finding.reason for finding in examine(tmp_path / "model.onnx"))
        for shapes in ({}, {value.name: ["batch", ...] for value in proto.graph.input}):
            try:
                ortrain.TrainingSession.from_model(damaged, loss=LossType.MSELoss, optimizer=OptimType.AdamW, input_shapes=shapes).close()
            except OrtrainError:
                continue
