"""The graph of a model as inline SVG."""

from __future__ import annotations

from html import escape

from ortrain.ir import Graph
from ortrain.report.layout import Layout, layered
from ortrain.report.simplification import Box, Picture, simplified

ROW, PADDING, CHARACTER = 19, 8, 7.4
"""Pixels of a row, of the space above and below the rows, and of a character."""
LONGEST = 34
"""Characters of a row."""
MARGIN, FRAME = 26, 44
"""Pixels around the picture, and beside it for the frames of repeated blocks."""
FAMILIES = {
    "weights": {"Conv", "ConvTranspose", "Gemm", "MatMul", "Gather", "LSTM", "GRU", "RNN", "FusedMatMul", "MatMulNBits", "Attention", "MultiHeadAttention"},
    "normalization": {"BatchNormalization", "LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization",
                      "SimplifiedLayerNormalization", "SkipLayerNormalization", "Dropout", "LRN", "LpNormalization"},
    "activation": {"Relu", "LeakyRelu", "PRelu", "Elu", "Selu", "Gelu", "FastGelu", "BiasGelu", "Sigmoid", "HardSigmoid", "HardSwish", "Mish", "Tanh",
                   "Softmax", "LogSoftmax", "Softplus", "Erf", "Clip", "Swish", "QuickGelu"},
    "pooling": {"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceSum", "ReduceMax", "Resize"},
}
"""Family -> its operators, which have a color of their own."""


def model_picture(graph: Graph) -> tuple[str, list[str]]:
    """Return (the graph as an SVG element, notes on what it leaves out). Colors are those of the page's style sheet."""
    picture = simplified(graph)
    sizes = [_size(box) for box in picture.boxes]
    layout = layered(sizes, picture.edges)
    drawn = [_frame(picture, layout, sizes, group) for group in range(len(picture.repeats))]
    drawn += [_edge(points) for points in layout.routes.values()]
    drawn += [_box(box, center, size) for box, center, size in zip(picture.boxes, layout.centers, sizes, strict=True)]
    side = MARGIN + (FRAME if picture.repeats else 0)
    width, height = layout.width + 2 * side, layout.height + 2 * MARGIN
    marker = ('<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
              '<path class="arrow" d="M0 1 7 4 0 7z"/></marker></defs>')
    return (f'<svg class="model" role="img" aria-label="graph of the model" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="{-side} {-MARGIN} {width:.0f} {height:.0f}">{marker}{"".join(drawn)}</svg>'), picture.notes


def _size(box: Box) -> tuple[float, float]:
    longest = max(len(_cut(text)) + (len(detail) + 2 if detail else 0) for text, detail in box.rows)
    return max(84.0, longest * CHARACTER + 26), len(box.rows) * ROW + 2 * PADDING - 4


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _box(box: Box, center: tuple[float, float], size: tuple[float, float]) -> str:
    left, top = center[0] - size[0] / 2, center[1] - size[1] / 2
    drawn = [f'<rect class="{box.kind}" x="{left:.1f}" y="{top:.1f}" width="{size[0]:.1f}" height="{size[1]:.1f}" rx="{6 if box.kind == "nodes" else 13}"/>']
    for number, (text, detail) in enumerate(box.rows):
        y = top + PADDING + number * ROW
        family = next((name for name, members in FAMILIES.items() if text in members), "other")
        if box.kind == "nodes":
            drawn.append(f'<rect class="family {family}" x="{left + 7:.1f}" y="{y:.1f}" width="4" height="{ROW - 6}" rx="2"/>')
        x = left + (18 if box.kind == "nodes" else 14)
        drawn.append(f'<text x="{x:.1f}" y="{y + 11:.1f}">{escape(_cut(text))}<title>{escape(text)}</title></text>')
        if detail:
            drawn.append(f'<text class="detail" x="{left + size[0] - 9:.1f}" y="{y + 11:.1f}" text-anchor="end">{escape(detail)}</text>')
    return "".join(drawn)


def _edge(points: list[tuple[float, float]]) -> str:
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x, y), (to_x, to_y) in zip(points, points[1:], strict=False):
        middle = (y + to_y) / 2
        path += f"V{to_y:.1f}" if abs(x - to_x) < 0.5 else f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
    return f'<path class="edge" d="{path}" marker-end="url(#arrow)"/>'


def _frame(picture: Picture, layout: Layout, sizes: list[tuple[float, float]], group: int) -> str:
    members = [number for number, box in enumerate(picture.boxes) if box.group == group]
    if not members:
        return ""
    top = min(layout.centers[number][1] - sizes[number][1] / 2 for number in members) - 13
    bottom = max(layout.centers[number][1] + sizes[number][1] / 2 for number in members) + 13
    # edges that pass a layer of the block are in the frame, too
    lanes = [x for points in layout.routes.values() for x, y in points[1:-1] if top < y < bottom]
    left = min([layout.centers[number][0] - sizes[number][0] / 2 for number in members] + lanes) - 14
    right = max([layout.centers[number][0] + sizes[number][0] / 2 for number in members] + lanes) + 14
    return (f'<rect class="frame" x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}" rx="10"/>'
            f'<text class="times" x="{right + 6:.1f}" y="{top + 14:.1f}">× {picture.repeats[group]}</text>')
