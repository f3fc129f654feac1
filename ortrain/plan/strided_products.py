"""Batched matrix multiplications that read and write views, so that heads of attention, windows and grouped queries are not copied.

A Transpose, Split, Slice or Gather whose result only multiplications read is not computed: the multiplications read its source with other strides, as
numpy.matmul does with views. A Transpose of a product is not computed either where the product can write its rows at their final places."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from ortrain.ir import Node
from ortrain.ops.registry.node_builder import GraphBuilder
from ortrain.ops.registry.record import ORTRAIN, canonical_domain
from ortrain.ops.strided_products import SIDES, View
from ortrain.plan.epilogue_fusion.products import SIDES as TRANSPOSITIONS
from ortrain.plan.epilogue_fusion.products import is_batched_product
from ortrain.plan.epilogue_fusion.rewriter import EpilogueRewriter, InsertingRewriter
from ortrain.plan.operator_kinds import COPIES

SHARED_SET_STEP = 1024
"""Elements between rows that fall into the same sets of the caches, which then hold few of them: products of 512 rows that are so far apart took 2.4 times as
long as products of copies; 768 apart, 1.05 times."""

Apply = Callable[[View], View]
"""A function that returns the view of a node's result in the source of a view of its input."""


def read_views_in_products(nodes: Sequence[Node], builder: GraphBuilder, outputs: Iterable[str]) -> list[Node]:
    """Return the nodes with multiplications that read views and write transposed results. outputs: values that must still be computed."""
    kept = tuple(outputs)
    return StridedProducts(TransposedParts(nodes, builder, kept).run(), builder.inference, kept).run()


@dataclass(frozen=True)
class Operand:
    """What a multiplication reads: a view of a source. direct: whether the source is the operand itself."""

    source: str
    view: View
    direct: bool


class StridedProducts(EpilogueRewriter):
    """One pass over the nodes of a plan; parameters as in EpilogueRewriter."""

    def run(self) -> list[Node]:
        """Return the nodes after the pass."""
        steps = {index: step for index, node in enumerate(self.nodes) if (step := self._step(node)) is not None}
        products = [index for index, node in enumerate(self.nodes) if is_batched_product(node, self.types)]
        operands = self._operands(products, steps)
        for index, sides in operands.items():
            self._rewrite(index, *sides)
        return [node for index, node in enumerate(self.result) if node is not None and index not in steps]

    def _rewrite(self, index: int, a: Operand, b: Operand) -> None:
        """Replace a multiplication that reads a view or whose transposed result alone is read."""
        node, perm = self.nodes[index], tuple(range(len(a.view.axes)))
        reader = self._sole_reader(node.outputs[0])
        transpose = self.nodes[reader] if reader is not None and self._is_onnx(self.nodes[reader], "Transpose") else None
        if transpose is not None:
            perm = tuple(transpose.attributes["perm"])
            if perm[-1] == len(perm) - 2:                   # the rows of the product are columns of the result: (A B)ᵀ = Bᵀ Aᵀ
                a, b = (replace(side, view=side.view.swapped()) for side in (b, a))
                last = {len(perm) - 1: len(perm) - 2, len(perm) - 2: len(perm) - 1}
                perm = tuple(last.get(axis, axis) for axis in perm)
            written = tuple(perm.index(axis) for axis in range(len(perm)))
            if perm[-1] != len(perm) - 1 or self._shares_sets(transpose.outputs[0], written):
                transpose, perm = None, tuple(range(len(perm)))
        if transpose is None and a.direct and b.direct:
            return
        attributes: dict[str, object] = {"alpha": float(node.attributes.get("alpha", 1.0)), "perm": perm}
        for name, side in zip(SIDES, (a, b), strict=True):
            attributes |= side.view.attributes(name)
        outputs = node.outputs
        if transpose is not None and reader is not None:
            self.result[reader], outputs = None, transpose.outputs
        self._replace(index, replace(node, op_type="StridedMatMul", domain=ORTRAIN, inputs=[a.source, b.source], outputs=outputs, attributes=attributes))

    # ---- operands

    def _operands(self, products: Sequence[int], steps: dict[int, dict[str, Apply]]) -> dict[int, tuple[Operand, Operand]]:
        """Return what each multiplication reads, and leave in `steps` only the nodes that need not be computed then."""
        while True:
            operands = {index: (self._operand(index, 0, steps), self._operand(index, 1, steps)) for index in products}
            sources = {side.source for sides in operands.values() for side in sides}
            computed = [index for index in steps if any(
                name in sources or any(reader not in operands and reader not in steps for reader in self.readers.get(name, ()))
                for name in self.nodes[index].outputs)]
            if not computed:
                return operands
            for index in computed:
                del steps[index]

    def _operand(self, product: int, side: int, steps: dict[int, dict[str, Apply]]) -> Operand:
        """Return an operand with as many nodes before it replaced by its view as leave contiguous rows or columns, a copy among them."""
        name = self.nodes[product].inputs[side]
        transposed, copies = bool(self.nodes[product].attributes.get(TRANSPOSITIONS[side], 0)), False
        chain: list[Apply] = []
        source = name
        best = Operand(name, self._view(name, chain, transposed), direct=True)
        while (index := self.producer.get(source, -1)) in steps:
            chain.append(steps[index][source])
            copies = copies or self.nodes[index].op_type in COPIES
            source = self.nodes[index].inputs[0]
            view = self._view(source, chain, transposed)
            if copies and view.is_readable_matrix() and not self._shares_sets(source, view.axes):
                best = Operand(source, view, direct=False)
        return best

    def _shares_sets(self, name: str, axes: Sequence[int]) -> bool:
        """Return whether the rows of matrices in a value fall into the same sets of the caches. axes: the axes of the value, of which the last two are those
        of the matrices."""
        sizes = self.types[name].shape or ()
        row = min(axes[-2:])
        distance = prod(size for size in sizes[row + 1 :] if isinstance(size, int))
        return row >= 0 and distance % SHARED_SET_STEP == 0

    def _view(self, source: str, chain: Sequence[Apply], transposed: bool) -> View:
        """Return what remains of a source after the nodes of a chain, of which the last one reads the source."""
        view = View.of(len(self.types[source].shape or ()))
        for apply in reversed(chain):
            view = apply(view)
        return view.swapped() if transposed else view

    # ---- nodes as views

    def _is_onnx(self, node: Node, *op_types: str) -> bool:
        return node.op_type in op_types and canonical_domain(node.domain) == ""

    def _step(self, node: Node) -> dict[str, Apply] | None:
        """Return, for each output of a node, the view that it is; None for a node that computes, or whose view depends on its inputs' values."""
        if canonical_domain(node.domain) != "" or not node.inputs or node.inputs[0] in self.values or self.types[node.inputs[0]].shape is None:
            return None
        find = {"Transpose": self._transpose, "Split": self._split, "Slice": self._slice, "Gather": self._gather, "Squeeze": self._squeeze,
                "Unsqueeze": self._unsqueeze}.get(node.op_type)
        return None if find is None else find(node)

    def _rank(self, name: str) -> int:
        return len(self.types[name].shape or ())

    def _ints(self, node: Node, index: int) -> list[int] | None:
        """Return a constant input as a list of integers; None where it is absent or not constant."""
        value = self.values.get(node.inputs[index]) if index < len(node.inputs) and node.inputs[index] else None
        return None if value is None else [int(x) for x in value.ravel()]

    def _axis(self, node: Node, default: int) -> int:
        return int(node.attributes.get("axis", default)) % self._rank(node.inputs[0])

    def _transpose(self, node: Node) -> dict[str, Apply] | None:
        perm = tuple(node.attributes.get("perm") or range(self._rank(node.inputs[0]))[::-1])
        return {node.outputs[0]: lambda view: view.transposed(perm)}

    def _split(self, node: Node) -> dict[str, Apply] | None:
        axis, start, steps = self._axis(node, 0), 0, dict[str, Apply]()
        for name in node.outputs:
            size = (self.types[name].shape or ())[axis] if name else None
            if not isinstance(size, int) or size < 1:
                return None
            steps[name] = lambda view, start=start, size=size: view.narrowed(axis, start, size)  # type: ignore[misc]
            start += size
        return steps

    def _slice(self, node: Node) -> dict[str, Apply] | None:
        """Slice with steps of 1 along axes of known sizes."""
        starts, axes, strides = (self._ints(node, index) for index in (1, 3, 4))
        shape, out = self.types[node.inputs[0]].shape or (), self.types[node.outputs[0]].shape or ()
        if starts is None or len(node.inputs) > 3 and node.inputs[3] and axes is None or any(stride != 1 for stride in strides or ()):
            return None
        if len(node.inputs) > 4 and node.inputs[4] and strides is None:
            return None
        cuts: list[tuple[int, int, int]] = []
        for start, axis in zip(starts, axes or range(len(starts)), strict=True):
            size, length = shape[axis], out[axis]
            if not isinstance(size, int) or not isinstance(length, int) or length < 1:
                return None
            cuts.append((axis % len(shape), min(max(start + size if start < 0 else start, 0), size), length))

        def apply(view: View) -> View:
            for axis, start, length in cuts:
                view = view.narrowed(axis, start, length)
            return view

        return {node.outputs[0]: apply}

    def _gather(self, node: Node) -> dict[str, Apply] | None:
        """Gather of one index, a scalar or a vector of one element, along an axis of known size."""
        index, axis = self._ints(node, 1), self._axis(node, 0)
        size = (self.types[node.inputs[0]].shape or ())[axis]
        rank = self._rank(node.inputs[1])
        if index is None or len(index) != 1 or rank > 1 or not isinstance(size, int) or not -size <= index[0] < size:
            return None
        return {node.outputs[0]: lambda view: view.narrowed(axis, index[0] % size, 1).without([] if rank else [axis])}

    def _squeeze(self, node: Node) -> dict[str, Apply] | None:
        axes = node.attributes.get("axes") or self._ints(node, 1)
        rank = self._rank(node.inputs[0])
        return None if axes is None else {node.outputs[0]: lambda view: view.without([axis % rank for axis in axes])}

    def _unsqueeze(self, node: Node) -> dict[str, Apply] | None:
        axes = node.attributes.get("axes") or self._ints(node, 1)
        rank = self._rank(node.outputs[0])
        return None if axes is None else {node.outputs[0]: lambda view: view.with_new(sorted(axis % rank for axis in axes))}


class TransposedParts(InsertingRewriter):
    """Transposes the parts of a Concat instead of the whole where all of them are products, which can write transposed results.

    The gradient of a packed projection of queries, keys and values has this form."""

    def run(self) -> list[Node]:
        """Return the nodes after the pass."""
        for index, node in enumerate(self.nodes):
            reader = self._sole_reader(node.outputs[0]) if node.op_type == "Concat" and canonical_domain(node.domain) == "" else None
            if reader is not None and self.nodes[reader].op_type == "Transpose" and canonical_domain(self.nodes[reader].domain) == "":
                self._transpose_parts(index, reader, tuple(self.nodes[reader].attributes["perm"]))
        return self.remaining()

    def _transpose_parts(self, index: int, reader: int, perm: tuple[int, ...]) -> None:
        """Transpose the parts of a Concat, which `reader` transposes."""
        node = self.nodes[index]
        sources = [self._product_before(name) for name in node.inputs]
        new_axes = [self._new_axes(name) for name in node.inputs]
        orders = [tuple(axis - sum(new < axis for new in new_axis) for axis in perm if axis not in new_axis) for new_axis in new_axes]
        if None in sources or any(order[-1] < len(order) - 2 for order in orders):
            return
        parts = [self._transposed(index, source, order, [perm.index(axis) for axis in new_axis])
                 for source, order, new_axis in zip(sources, orders, new_axes, strict=True) if source is not None]
        self.result[reader] = None
        for name, new_axis in zip(node.inputs, new_axes, strict=True):
            if new_axis:
                self.result[self.producer[name]] = None
        axis = perm.index(int(node.attributes["axis"]) % len(perm))
        self._replace(index, replace(node, inputs=parts, outputs=self.nodes[reader].outputs, attributes={**node.attributes, "axis": axis}))

    def _new_axes(self, name: str) -> list[int]:
        """Return the axes that an Unsqueeze before a value adds."""
        node = self.nodes[self.producer[name]] if name in self.producer else None
        if node is None or node.op_type != "Unsqueeze":
            return []
        axes = node.attributes.get("axes") or (self.values[node.inputs[1]].ravel() if node.inputs[1] in self.values else ())
        rank = len(self.types[name].shape or ())
        return sorted(int(axis) % rank for axis in axes)

    def _product_before(self, name: str) -> str | None:
        """Return the product that a value is, perhaps with new axes, where nothing else reads it; None for another value."""
        new_axes = self._new_axes(name)
        product = self.nodes[self.producer[name]].inputs[0] if new_axes else name
        is_product = product in self.producer and is_batched_product(self.nodes[self.producer[product]], self.types)
        return product if is_product and self._sole_reader(name) is not None and self._sole_reader(product) is not None else None

    def _transposed(self, index: int, source: str, order: tuple[int, ...], new_axes: list[int]) -> str:
        """Add a Transpose of a source before a node, and the new axes of its result; return the name of the result."""
        name = self.builder.names.unique(f"{source}::transposed")
        self._insert(index, Node("Transpose", [source], [name], "", "", {"perm": order}))
        if not new_axes:
            return name
        shape = list(self.types[name].shape or ())
        for axis in sorted(new_axes):
            shape.insert(axis, 1)
        result = self.builder.names.unique(f"{source}::part")
        self._insert(index, Node("Reshape", [name, self.builder.integer_constant(shape, "shape")], [result]))  # type: ignore[arg-type]
        return result
