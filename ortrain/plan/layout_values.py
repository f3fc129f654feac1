"""Values of a plan that exist in ONNX's layout, channels-last under another name, or both; see ortrain.plan.layout."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ortrain.ir import Node, TensorType
from ortrain.ops.channels_last import RANKS
from ortrain.ops.registry.node_builder import GraphBuilder
from ortrain.ops.registry.record import ORTRAIN, InferenceContext


def to_last(rank: int) -> tuple[int, ...]:
    """Return the permutation of axes from [n, c, h, w] to [n, h, w, c]."""
    return 0, *range(2, rank), 1


def to_first(rank: int) -> tuple[int, ...]:
    """Return the permutation of axes from [n, h, w, c] to [n, c, h, w]."""
    return 0, rank - 1, *range(1, rank - 1)


def last(shape: Sequence[int]) -> tuple[int, ...]:
    """Return [n, h, w, c] of [n, c, h, w]."""
    return tuple(shape[axis] for axis in to_last(len(shape)))


class LaidOutValues:
    """The names of values in both layouts, and the nodes that convert them."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self.inference = builder.inference
        self.channels_last: dict[str, str] = {}
        """Value -> its channels-last name."""
        self.only_channels_last: set[str] = set()
        """Values that exist channels-last only."""
        self.divided: dict[str, tuple[str, int]] = {}
        """Values [n, c1, c2, h, w], which divide the channels of images and exist as [n, h, w, c1, c2] only -> their names there, numbers of channel axes."""
        self.converted: list[Node] = []

    def kind(self, name: str) -> TensorType | None:
        return self.inference.types.get(name) if name else None

    def sizes(self, name: str) -> tuple[int, ...]:
        """Return the shape of a value if it is static, else ()."""
        kind = self.kind(name)
        return kind.sizes if kind is not None and kind.is_static else ()

    def image_sizes(self, name: str) -> tuple[int, ...]:
        """Return the shape of a value if it is that of images, else ()."""
        sizes = self.sizes(name)
        return sizes if len(sizes) in RANKS else ()

    def emit(self, op_type: str, inputs: list[str], outputs: list[str], original: Node, domain: str = ORTRAIN, **attributes: object) -> None:
        node = Node(op_type, inputs, outputs, original.name, domain, attributes)
        self.inference.visit(node)
        self.converted.append(node)

    def new_channels_last(self, name: str) -> str:
        """Register a value that is only computed channels-last; return its new name."""
        if not name:
            return ""
        self.channels_last[name] = self.builder.names.unique(f"{name}::channels_last")
        self.only_channels_last.add(name)
        return self.channels_last[name]

    def to_channels_last(self, name: str) -> str:
        """Return the channels-last name of a value, transposing the value if necessary."""
        if name not in self.channels_last:
            self.ensure_channels_first(name)
            self.channels_last[name] = self.builder.names.unique(f"{name}::channels_last")
            self.transpose(name, self.channels_last[name], to_last(len(self.sizes(name))))
        return self.channels_last[name]

    def ensure_channels_first(self, name: str) -> None:
        """Transpose a value back to ONNX's layout if it only exists channels-last."""
        if name in self.only_channels_last:
            self.only_channels_last.discard(name)
            self.transpose(self.channels_last[name], name, to_first(len(self.sizes(name))))
        elif name in self.divided:
            source, count = self.divided.pop(name)
            rank = len(self.sizes(name))
            self.emit("Transpose", [source], [name], Node("Transpose", [], [], name), "", perm=(0, *range(rank - count, rank), *range(1, rank - count)))

    def is_channels_last(self, name: str) -> bool:
        return name in self.only_channels_last

    def channel_axes(self, name: str) -> int:
        """Return the number of axes into which the channels of a channels-last value are divided; 0 if the value is not channels-last."""
        return 1 if name in self.only_channels_last else self.divided.get(name, ("", 0))[1]

    def transpose(self, source: str, target: str, permutation: tuple[int, ...]) -> None:
        """Add a Transpose, or a Reshape where it would not reorder elements (a single channel or a single pixel)."""
        dims = self.sizes(source)
        transposed_shape = [dims[axis] for axis in permutation]
        channels, pixels = (dims[1], prod(dims[2:])) if permutation == to_last(len(dims)) else (dims[-1], prod(dims[1:-1]))
        original = Node("Transpose", [], [], target)
        if channels == 1 or pixels == 1:
            self.emit("Reshape", [source, self.builder.integer_constant(transposed_shape, "shape")], [target], original, "")
        else:
            self.emit("Transpose", [source], [target], original, "", perm=permutation)

    def context(self, node: Node) -> InferenceContext:
        return self.inference.context(node)
