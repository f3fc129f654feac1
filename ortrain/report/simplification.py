"""A model's graph as few boxes: without computations of shapes, repeated blocks once, chains of nodes in one box."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ortrain.ir import Graph, Node

SHAPE_OPERATORS = frozenset({"Shape", "Size"})
MAX_ROWS, MAX_ROWS_OF_SMALL, SMALL = 9, 24, 60
"""Rows of a box, also in graphs of at most SMALL nodes; longer chains are shortened in their middle."""
MAX_BOXES = 120
"""Boxes of a picture; the middle of larger graphs becomes a single box."""
LEAST_FOLDED = 8
"""Nodes that the folding of a repetition has to save."""
MAX_PERIOD = 40
"""Segments of a block that may be recognized as repeated."""


@dataclass(slots=True)
class Box:
    """A box of the picture.

    kind: "input", "output" or "nodes". rows: (text, detail) of each line. group: the number of the repeated block that the box is in, None outside."""

    kind: str
    rows: list[tuple[str, str]]
    group: int | None = None


@dataclass(slots=True)
class Picture:
    """Boxes, edges between them as pairs of indices, and for each repeated block how often it occurs. notes: what was left out, in words."""

    boxes: list[Box] = field(default_factory=list)
    edges: set[tuple[int, int]] = field(default_factory=set)
    repeats: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def simplified(graph: Graph) -> Picture:
    """Return the picture of a graph."""
    nodes, hidden = _shown_nodes(graph)
    kept, groups, repeats, renamed = _fold_repetitions(graph, nodes)
    picture = _boxes(graph, kept, groups, renamed)
    picture.repeats = repeats
    _merge_chains(picture)
    _shorten(picture, MAX_ROWS_OF_SMALL if len(kept) <= SMALL else MAX_ROWS)
    if hidden:
        picture.notes.append(f"{hidden} nodes that compute shapes or constants are left out")
    folded = len(nodes) - len(kept)
    if folded:
        picture.notes.append(f"{folded} nodes of repeated blocks are drawn once")
    return picture


def _shown_nodes(graph: Graph) -> tuple[list[Node], int]:
    """Return the nodes without those that depend on shapes and constants alone, and how many those are."""
    auxiliary = set(graph.initializers) | {""}
    shown = []
    for node in graph.nodes:
        if node.op_type in SHAPE_OPERATORS or all(value in auxiliary for value in node.inputs):
            auxiliary.update(node.outputs)
        else:
            shown.append(node)
    return shown, len(graph.nodes) - len(shown)


# ---- repeated blocks

def _fold_repetitions(graph: Graph, nodes: Sequence[Node]) -> tuple[list[Node], list[int | None], list[int], dict[str, str]]:
    """Return (nodes to draw, the group of each, repetitions of each group, value -> the value that it is drawn as).

    The graph is cut where a single value leads on; a block is a sequence of such segments that is followed by others with the same operators and weights."""
    starts, carriers = _segments(graph, nodes)
    bounds = [*starts, len(nodes)]
    numbers: dict[tuple[object, ...], int] = {}
    signs = [numbers.setdefault(_signature(graph, nodes[first:last]), len(numbers)) for first, last in zip(bounds, bounds[1:], strict=False)]
    kept: list[Node] = []
    groups: list[int | None] = []
    repeats: list[int] = []
    renamed: dict[str, str] = {}
    place = 0
    while place < len(signs):
        period, times = _repetition(signs, bounds, place)
        last = bounds[place + period]
        block = nodes[bounds[place] : last]
        kept += block
        groups += [len(repeats) if times > 1 else None] * len(block)
        if times > 1:
            repeats.append(times)
            end = bounds[place + period * times]
            if end in carriers and last in carriers:
                renamed[carriers[end]] = carriers[last]
        place += period * times
    return kept, groups, repeats, renamed


def _segments(graph: Graph, nodes: Sequence[Node]) -> tuple[list[int], dict[int, str]]:
    """Return the positions at which segments begin, and for each the only value that leads into it. Values that are read far away, such as masks, do not
    count."""
    made = dict.fromkeys(graph.inputs, -1) | {value: number for number, node in enumerate(nodes) for value in node.outputs if value}
    last: dict[str, int] = {}
    for number, node in enumerate(nodes):
        last.update({value: number for value in node.inputs if value in made})
    far = max(40, len(nodes) // 4)
    crossing: list[set[str]] = [set() for _ in range(len(nodes) + 1)]
    for value, end in last.items():
        if end - made[value] <= far:
            for position in range(made[value] + 1, end + 1):
                crossing[position].add(value)
    carriers = {position: next(iter(values)) for position, values in enumerate(crossing) if len(values) == 1 and position}
    for value in graph.outputs:
        if value in made:
            carriers.setdefault(len(nodes), value)
    return sorted({0, *(position for position in carriers if position < len(nodes))}), carriers


def _signature(graph: Graph, nodes: Sequence[Node]) -> tuple[object, ...]:
    return tuple((node.op_type, node.domain, tuple(graph.initializers[value].shape for value in node.inputs if value in graph.initializers))
                 for node in nodes)


def _repetition(signs: Sequence[int], bounds: Sequence[int], place: int) -> tuple[int, int]:
    """Return (period, repetitions) of the block at a segment that saves most nodes, (1, 1) where none saves enough."""
    best, saved = (1, 1), LEAST_FOLDED - 1
    for period in range(1, min(MAX_PERIOD, (len(signs) - place) // 2) + 1):
        times = 1
        while signs[place + period * times : place + period * (times + 1)] == signs[place : place + period]:
            times += 1
        found = (times - 1) * (bounds[place + period] - bounds[place])
        if found > saved and bounds[place + period] - bounds[place] > 1:
            best, saved = (period, times), found
    return best


# ---- boxes and edges

def _boxes(graph: Graph, nodes: Sequence[Node], groups: Sequence[int | None], renamed: dict[str, str]) -> Picture:
    picture = Picture()
    maker: dict[str, int] = {}

    def add(box: Box, outputs: Iterable[str]) -> int:
        picture.boxes.append(box)
        maker.update({value: len(picture.boxes) - 1 for value in outputs if value})
        return len(picture.boxes) - 1

    for name in graph.inputs:
        add(Box("input", [(name, _type(graph, name))]), [name])
    for node, group in zip(nodes, groups, strict=True):
        number = add(Box("nodes", [(node.op_type, _detail(graph, node))], group), node.outputs)
        for value in node.inputs:
            source = maker.get(renamed.get(value, value))
            if source is not None and source != number:
                picture.edges.add((source, number))
    for name in graph.outputs:
        source = maker.get(renamed.get(name, name))
        number = add(Box("output", [(name, _type(graph, name))]), [])
        if source is not None:
            picture.edges.add((source, number))
    return picture


def _type(graph: Graph, name: str) -> str:
    kind = graph.types.get(name)
    return "" if kind is None else f"{kind.dtype} {'?' if kind.shape is None else ' × '.join(map(str, kind.shape))}"


def _detail(graph: Graph, node: Node) -> str:
    """Return the shape of a layer's weight in words: 3 × 3, 16 → 32."""
    weights = [graph.initializers[value] for value in node.inputs[1:] if value in graph.initializers]
    weight = next((array for array in weights if array.ndim > 1), None)
    if weight is None:
        kernel = node.attributes.get("kernel_shape")
        return " × ".join(map(str, kernel)) if kernel else ""
    if node.op_type in ("Conv", "ConvTranspose"):
        kernel, group = weight.shape[2:], int(node.attributes.get("group", 1))
        first, second = (weight.shape[1] * group, weight.shape[0]) if node.op_type == "Conv" else (weight.shape[0], weight.shape[1] * group)
        return f"{' × '.join(map(str, kernel))}, {first} → {second}"
    if node.op_type in ("Gemm", "MatMul") and weight.ndim == 2:
        first, second = reversed(weight.shape) if node.attributes.get("transB") else weight.shape
        return f"{first} → {second}"
    return " × ".join(map(str, weight.shape))


def _merge_chains(picture: Picture) -> None:
    """Put boxes of nodes that follow each other without branches into one box."""
    before, after = Counter(b for _, b in picture.edges), Counter(a for a, _ in picture.edges)
    following = {a: b for a, b in picture.edges if after[a] == 1 and before[b] == 1 and picture.boxes[a].kind == picture.boxes[b].kind == "nodes"
                 and picture.boxes[a].group == picture.boxes[b].group}
    target = list(range(len(picture.boxes)))
    for first in sorted(set(following) - set(following.values())):
        number = first
        while number in following:
            number = following[number]
            picture.boxes[first].rows += picture.boxes[number].rows
            target[number] = first
    _renumber(picture, target)


def _shorten(picture: Picture, most: int) -> None:
    """Shorten long boxes, and make the middle of a large picture one box."""
    for box in picture.boxes:
        if len(box.rows) > most:
            half = most // 2
            box.rows = [*box.rows[:half], (f"… {len(box.rows) - 2 * half} more …", ""), *box.rows[-half:]]
    if len(picture.boxes) <= MAX_BOXES:
        return
    middle = [number for number in range(MAX_BOXES // 2, len(picture.boxes) - MAX_BOXES // 2) if picture.boxes[number].kind == "nodes"]
    count = sum(len(picture.boxes[number].rows) for number in middle)
    target = list(range(len(picture.boxes)))
    for number in middle:
        target[number] = middle[0]
    picture.boxes[middle[0]] = Box("nodes", [(f"… {count} more nodes …", "")])
    picture.notes.append(f"{count} nodes in the middle are one box")
    _renumber(picture, target)
    picture.edges = {(a, b) for a, b in picture.edges if a < b}


def _renumber(picture: Picture, target: Sequence[int]) -> None:
    """Replace each box by its target, and count the boxes that are left from 0."""
    left = sorted(set(target))
    number = {old: new for new, old in enumerate(left)}
    picture.boxes = [picture.boxes[old] for old in left]
    edges = {(number[target[a]], number[target[b]]) for a, b in picture.edges}
    picture.edges = {(a, b) for a, b in edges if a != b}
