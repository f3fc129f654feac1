"""Losses of embeddings: of pairs with a label, and of triplets, whose relation is itself the target."""

from __future__ import annotations

from ortrain.errors import InvalidModelError
from ortrain.onnxblock import blocks
from ortrain.onnxblock.building import add_node, dtype_of, type_of
from ortrain.onnxblock.loss.base import Loss, check_number, rank_of, reduce_axes, scalar, target_input, tensor_type


class TripletMarginLoss(Loss):
    """The mean (or sum) of max(0, d(anchor, positive) - d(anchor, negative) + margin), d(a, b) = ||a - b + eps||_p over the last axis.

    The loss is called with three outputs of the model, embeddings [n, d], and has no target. margin, p, eps: greater than 0. swap: take the smaller one of
    d(anchor, negative) and d(positive, negative). Raises InvalidArgumentError for other numbers."""

    predictions, targets = ("anchor", "positive", "negative"), ()

    def __init__(self, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False, reduction: str = "mean",
                 sample_weight: bool = False) -> None:
        super().__init__(reduction, sample_weight)
        self._margin = check_number("a margin", margin, 0.0, strict=True)
        self._p = check_number("a p", p, 0.0, strict=True)
        self._eps = check_number("an eps", eps, 0.0, strict=True)
        self._swap = swap

    def _distance(self, one: str, other: str) -> str:
        difference = blocks.Add()(blocks.Sub()(one, other), scalar(self._eps, one))
        if self._p == 2:
            return add_node("Sqrt", [reduce_axes("ReduceSum", blocks.Mul()(difference, difference), [-1])])[0]
        size = blocks.Abs()(difference)
        if self._p == 1:
            return reduce_axes("ReduceSum", size, [-1])
        return str(blocks.Pow(1 / self._p)(reduce_axes("ReduceSum", blocks.Pow(self._p)(size), [-1])))

    def build(self, anchor_name: str, positive_name: str, negative_name: str) -> str:
        """Build the loss of three embeddings. Raises InvalidModelError for values without an axis of samples and one of features."""
        for name in (anchor_name, positive_name, negative_name):
            _check_rank(name, 2, None, "embeddings [n, d]")
        apart = self._distance(anchor_name, negative_name)
        if self._swap:
            apart = add_node("Min", [apart, self._distance(positive_name, negative_name)])[0]
        excess = blocks.Sub()(self._distance(anchor_name, positive_name), apart)
        return self.reduce(add_node("Relu", [blocks.Add()(excess, scalar(self._margin, anchor_name))])[0])


class CosineEmbeddingLoss(Loss):
    """The mean (or sum) of 1 - cos(x1, x2) where the target is 1, and of max(0, cos(x1, x2) - margin) where it is -1.

    The loss is called with two outputs of the model, embeddings [n, d]; the target is [n] in their dtype. cos(x1, x2) = x1·x2 / √((x1·x1 + 1e-12)
    (x2·x2 + 1e-12)), as in PyTorch. margin: in [-1, 1]. Raises InvalidArgumentError for another one."""

    predictions = ("x1", "x2")
    EPSILON = 1e-12

    def __init__(self, margin: float = 0.0, reduction: str = "mean", sample_weight: bool = False) -> None:
        super().__init__(reduction, sample_weight)
        self._margin = check_number("a margin", margin, -1.0, 1.0)

    def build(self, first_name: str, second_name: str, target_name: str = "target") -> str:
        """Build the loss of two embeddings. Raises InvalidModelError for values that are not [n, d]."""
        for name in (first_name, second_name):
            _check_rank(name, 2, 2, "embeddings [n, d]")
        dims = type_of(first_name).tensor_type.shape.dim
        target = target_input(target_name, tensor_type(dtype_of(first_name), list(dims)[:1] or [None]))
        add, sub, mul = blocks.Add(), blocks.Sub(), blocks.Mul()

        def dot(one: str, other: str) -> str:
            return reduce_axes("ReduceSum", mul(one, other), [1])

        sizes = [add(dot(name, name), scalar(self.EPSILON, name)) for name in (first_name, second_name)]
        cosine = blocks.Div()(dot(first_name, second_name), add_node("Sqrt", [mul(*sizes)])[0])
        one, half = scalar(1.0, first_name), scalar(0.5, first_name)
        alike, unlike = mul(half, add(one, target)), mul(half, sub(one, target))         # 1 and 0, or 0 and 1
        excess = add_node("Relu", [sub(cosine, scalar(self._margin, first_name))])[0]
        return self.reduce(add(mul(alike, sub(one, cosine)), mul(unlike, excess)))


def _check_rank(name: str, low: int, high: int | None, what: str) -> None:
    rank = rank_of(name)
    if rank is not None and (rank < low or high is not None and rank > high):
        raise InvalidModelError(f"expected {what}, got rank {rank} ({name!r})")
