"""The layered layout of a directed graph without cycles (Sugiyama, Tagawa and Toda, Methods for Visual Understanding of Hierarchical System Structures, 1981).

Boxes are put into layers by their longest path, long edges get a point in every layer that they pass, layers are ordered by medians of neighbours, and
coordinates are moved toward those of neighbours as far as the gaps allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

GAP_X, GAP_Y = 22, 34
"""Pixels between boxes side by side, and between layers."""
LANE = 14
"""The width of an edge that passes a layer."""
LANE_WEIGHT = 0.02
"""How much an edge that passes a layer pushes the boxes beside it, whose weight is 1."""
SWEEPS = 12

Size = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Layout:
    """The center of each box, the points of each edge from box to box, and the size of the whole."""

    centers: list[tuple[float, float]]
    routes: dict[tuple[int, int], list[tuple[float, float]]]
    width: float
    height: float


def layered(sizes: Sequence[Size], edges: set[tuple[int, int]]) -> Layout:
    """Place boxes of (width, height). edges: pairs of box numbers, each leading to a higher number."""
    layer = _layers(len(sizes), edges)
    widths = [width for width, _ in sizes]
    paths: dict[tuple[int, int], list[int]] = {}
    links: list[tuple[int, int]] = []
    for first, last in sorted(edges):
        path = [first]
        for passed in range(layer[first] + 1, layer[last]):
            layer.append(passed)
            widths.append(LANE)
            path.append(len(widths) - 1)
        paths[first, last] = [*path, last]
        links += zip(paths[first, last], paths[first, last][1:], strict=False)
    above: list[list[int]] = [[] for _ in widths]
    below: list[list[int]] = [[] for _ in widths]
    for first, last in links:
        above[last].append(first)
        below[first].append(last)
    rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for number, row in enumerate(layer):
        rows[row].append(number)
    _order(rows, above, below)
    x = _positions(rows, widths, above, below, len(sizes))
    return _placed(sizes, rows, x, widths, layer, paths)


def _layers(count: int, edges: set[tuple[int, int]]) -> list[int]:
    """The layer of each box: one below the lowest box before it."""
    layer = [0] * count
    before: list[list[int]] = [[] for _ in range(count)]
    for first, last in edges:
        before[last].append(first)
    for number in range(count):
        layer[number] = 1 + max((layer[other] for other in before[number]), default=-1)
    return layer


def _order(rows: list[list[int]], above: Sequence[Sequence[int]], below: Sequence[Sequence[int]]) -> None:
    place: dict[int, float] = {}

    def remember(row: list[int]) -> None:
        place.update({number: position for position, number in enumerate(row)})

    for row in rows:
        remember(row)
    for sweep in range(SWEEPS):
        neighbours = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            row.sort(key=lambda number: median([place[other] for other in neighbours[number]]) if neighbours[number] else place[number])
            remember(row)


def _positions(rows: list[list[int]], widths: Sequence[float], above: Sequence[Sequence[int]], below: Sequence[Sequence[int]], boxes: int) -> list[float]:
    """The x of each center: rows begin centered, then every box is pulled to its neighbours, those of a row keeping their order and distance."""
    x = [0.0] * len(widths)
    for row in rows:
        left = -sum(widths[number] + GAP_X for number in row) / 2
        for number in row:
            x[number] = left + (widths[number] + GAP_X) / 2
            left += widths[number] + GAP_X
    for sweep in range(2 * SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = [_pull(x, number, above[number], below[number], boxes) for number in row]
            weights = [1.0 if number < boxes else LANE_WEIGHT for number in row]
            for number, position in zip(row, _separated(row, wanted, widths, weights), strict=True):
                x[number] = position
    return x


def _pull(x: Sequence[float], number: int, above: Sequence[int], below: Sequence[int], boxes: int) -> float:
    others = [*above, *below]
    # a long edge is straight as far as it passes layers, and boxes do not follow it
    others = [other for other in others if (other < boxes) == (number < boxes)] or others
    return median([x[other] for other in others]) if others else x[number]


def _separated(row: Sequence[int], wanted: Sequence[float], widths: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Positions in order that keep the gaps and are closest to the wanted ones in the weighted least squares (the pool-adjacent-violators algorithm)."""
    offsets = [0.0]
    for first, second in zip(row, row[1:], strict=False):
        offsets.append(offsets[-1] + (widths[first] + widths[second]) / 2 + GAP_X)
    blocks: list[tuple[float, float, int]] = []
    for want, offset, weight in zip(wanted, offsets, weights, strict=True):
        mean, count = want - offset, 1
        while blocks and blocks[-1][0] > mean:
            other, more, size = blocks.pop()
            mean, weight, count = (mean * weight + other * more) / (weight + more), weight + more, count + size
        blocks.append((mean, weight, count))
    means = [mean for mean, _, count in blocks for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]


def _placed(sizes: Sequence[Size], rows: list[list[int]], x: list[float], widths: Sequence[float], layer: Sequence[int],
            paths: dict[tuple[int, int], list[int]]) -> Layout:
    heights = [max((sizes[number][1] for number in row if number < len(sizes)), default=0.0) for row in rows]
    tops = [sum(heights[:number]) + GAP_Y * number for number in range(len(rows))]
    left = min((x[number] - widths[number] / 2 for number in range(len(widths))), default=0.0)
    centers = [(x[number] - left, tops[layer[number]] + heights[layer[number]] / 2) for number in range(len(sizes))]
    routes = {}
    for (first, last), path in paths.items():
        points = [(centers[first][0], centers[first][1] + sizes[first][1] / 2)]
        for number in path[1:-1]:
            top = tops[layer[number]]
            points += [(x[number] - left, top), (x[number] - left, top + heights[layer[number]])]
        routes[first, last] = [*points, (centers[last][0], centers[last][1] - sizes[last][1] / 2)]
    width = max((x[number] + widths[number] / 2 - left for number in range(len(widths))), default=0.0)
    return Layout(centers, routes, width, tops[-1] + heights[-1] if rows else 0.0)
