"""The picture of a model: what is folded, and that boxes never overlap."""

import time
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.workloads import WORKLOADS
from ortrain.ir import Graph, Node
from ortrain.loading.loader import as_model
from ortrain.report.curves import ticks
from ortrain.report.layout import GAP_X, layered
from ortrain.report.model_picture import model_picture
from ortrain.report.simplification import MAX_BOXES, simplified


def chain(length, operator="Relu"):
    """A graph of nodes that follow each other."""
    nodes = [Node(operator, [f"v{number}"], [f"v{number + 1}"]) for number in range(length)]
    return Graph("chain", ["v0"], [f"v{length}"], nodes)


def residual_blocks(count, width=4):
    """count times x + MatMul(Relu(MatMul(x))), with weights of one shape."""
    graph = Graph("blocks", ["v0"], [f"v{count}"])
    for number in range(count):
        for part in "ab":
            graph.initializers[f"w{number}{part}"] = np.zeros((width, width), np.float32)
        graph.nodes += [Node("MatMul", [f"v{number}", f"w{number}a"], [f"h{number}"]), Node("Relu", [f"h{number}"], [f"r{number}"]),
                        Node("MatMul", [f"r{number}", f"w{number}b"], [f"m{number}"]), Node("Add", [f"v{number}", f"m{number}"], [f"v{number + 1}"])]
    return graph


def shuffled(count, branches):
    """A graph without repetitions, whose nodes read one of the `branches` values before them."""
    rng = np.random.default_rng(count)
    nodes = [Node(f"Op{number}", sorted({f"v{max(0, number - int(back))}" for back in rng.integers(0, branches, 2)}), [f"v{number + 1}"])
             for number in range(count)]
    return Graph("shuffled", ["v0"], [f"v{count}"], nodes)


def test_a_chain_is_one_box_with_a_row_for_each_node():
    picture = simplified(chain(6))
    assert [(box.kind, len(box.rows)) for box in picture.boxes] == [("input", 1), ("nodes", 6), ("output", 1)]
    assert picture.edges == {(0, 1), (1, 2)}


def test_a_repeated_block_is_drawn_once_with_its_number():
    picture = simplified(residual_blocks(12))
    assert picture.repeats == [12] and "44 nodes of repeated blocks are drawn once" in picture.notes
    operators = [text for box in picture.boxes if box.group == 0 for text, _ in box.rows]
    assert operators == ["MatMul", "Relu", "MatMul", "Add"]
    svg, _ = model_picture(residual_blocks(12))
    assert "× 12" in svg and svg.count('class="frame"') == 1


def test_blocks_of_different_weights_are_not_taken_for_repetitions():
    graph = residual_blocks(6)
    for number in range(6):
        for part in "ab":
            graph.initializers[f"w{number}{part}"] = np.zeros((4 + number, 4 + number), np.float32)
    assert simplified(graph).repeats == []


def test_computations_of_shapes_are_left_out():
    graph = chain(2)
    graph.nodes += [Node("Shape", ["v0"], ["s"]), Node("Gather", ["s", "axis"], ["g"]), Node("Reshape", ["v2", "g"], ["out"])]
    graph.initializers["axis"] = np.array(0)
    graph.outputs = ["out"]
    picture = simplified(graph)
    assert [text for box in picture.boxes if box.kind == "nodes" for text, _ in box.rows] == ["Relu", "Relu", "Reshape"]
    assert picture.notes == ["2 nodes that compute shapes or constants are left out"]


@pytest.mark.parametrize("count", [5, 60, 500, 3000])
def test_graphs_of_any_size_have_a_picture_of_limited_size_in_no_time(count):
    started = time.perf_counter()
    svg, notes = model_picture(shuffled(count, 6))
    assert time.perf_counter() - started < 10
    boxes = simplified(shuffled(count, 6)).boxes
    assert len(boxes) <= MAX_BOXES + 2 and any("in the middle" in note for note in notes) == (count >= 500)
    assert ElementTree.fromstring(svg).attrib["width"].isdecimal()


@pytest.mark.parametrize("name", ["resnet18-cifar", "mobilenetv2-full", "bert-mini", "lstm"])
def test_real_networks_have_a_picture_that_fits_a_page(name):
    svg, _ = model_picture(as_model(WORKLOADS[name].make(name)[0]).graph)
    root = ElementTree.fromstring(svg)
    assert int(root.attrib["width"]) < 900 and len(svg) < 60_000
    assert ("× 4" in svg) == (name == "bert-mini"), "bert-mini has four layers"


@settings(deadline=None)
@given(st.data())
def test_boxes_never_overlap_and_edges_lead_downward(data):
    count = data.draw(st.integers(1, 25))
    sizes = [(float(data.draw(st.integers(20, 200))), float(data.draw(st.integers(20, 90)))) for _ in range(count)]
    edges = {(a, b) for a, b in data.draw(st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=40)) if a < b}
    layout = layered(sizes, edges)
    for first in range(count):
        x, y = layout.centers[first]
        assert sizes[first][0] / 2 - 1e-6 <= x <= layout.width - sizes[first][0] / 2 + 1e-6 and 0 <= y <= layout.height
        for second in range(first):
            apart_x = abs(x - layout.centers[second][0]) - (sizes[first][0] + sizes[second][0]) / 2
            apart_y = abs(y - layout.centers[second][1]) - (sizes[first][1] + sizes[second][1]) / 2
            assert apart_x >= GAP_X - 1e-6 or apart_y > 0
    assert set(layout.routes) == edges
    for points in layout.routes.values():
        assert [y for _, y in points] == sorted(y for _, y in points)


@given(st.floats(-1e12, 1e12), st.floats(1e-9, 1e12))
def test_ticks_are_few_ascending_and_within_the_range(low, width):
    assume(width > 1e-9 * abs(low))
    high = low + width
    found = ticks(low, high)
    assert len(found) <= 6 and found == sorted(found)
    assert all(low - width * 1e-6 <= value <= high + width * 1e-6 for value in found)
