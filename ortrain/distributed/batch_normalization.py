"""Batch normalization by the statistics of all workers' samples.

The training model stays as it is in files. The copy of it that a session runs has, in place of each batch normalization in training mode, the local means and
variances, an operator in Python that combines those of all workers, and a normalization by the result; and in place of its gradient the local sums, an operator
that combines them, and what remains element by element. Tokens from one such operator to the next give all workers the same order of exchanges."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortrain.distributed.workers import Workers
from ortrain.errors import InvalidArgumentError
from ortrain.ir import Model, NameSource, Node
from ortrain.ops.custom import register_operator
from ortrain.training.binding import SYNCHRONIZED_STATISTICS, statistics_of
from ortrain.training.session import TrainingSession

DOMAIN = "ortrain.distributed"
GRADIENT_FACTORS = "SynchronizedGradientFactors"
Type = tuple[str, Any]


class SynchronizedBatchNormalization:
    """Lets the train steps of a session normalize by the means and variances of the batches of all workers, whose running statistics then are the same.

    Every batch normalization that is trained exchanges 2 c + 1 numbers for c channels in the forward pass, and as many in the backward pass. All workers run
    their train steps within step(), together.

    session: that of this worker. workers: all of them. Raises InvalidArgumentError for a training model that has a BatchNormalization in training mode in
    place of the operator BatchNormInternal, which artifacts of ortrain and of onnxruntime-training have."""

    _instances: weakref.WeakValueDictionary[int, SynchronizedBatchNormalization] = weakref.WeakValueDictionary()
    """By the number that the operators have as an attribute."""
    _numbers = itertools.count()

    def __init__(self, session: TrainingSession, workers: Workers) -> None:
        self.workers = workers
        self._number = next(self._numbers)
        self._instances[self._number] = self
        self._share = 1.0
        self._session = session
        self._exchanges: list[Exchange] = []
        """Those of a train step, in order."""
        self._done = 0
        session.rewrite_train_steps(self._rewrite)

    @classmethod
    def numbered(cls, number: int) -> SynchronizedBatchNormalization:
        """Return an instance by its number."""
        return cls._instances[number]

    @contextmanager
    def step(self, share: float) -> Iterator[None]:
        """A block with the train step of this worker on its part of a batch; without one where it has no samples.

        share: of the samples of the batch, as for Synchronization.sum_gradients. Raises WorkerFailedError when another worker has failed before."""
        self.workers.sum()
        self._share, self._done = share, 0
        try:
            yield
        except BaseException:
            self._take_part()                               # the others are to go on, until they notice
            raise
        for exchange, total in self._take_part():           # a worker without samples
            frozen = self._session.state.frozen
            if exchange.running is not None and frozen.keys() >= set(exchange.running):
                arrays = [frozen[name] for name in exchange.running]
                for array, updated in zip(arrays, updated_statistics(arrays, combined(total), exchange.momentum), strict=True):
                    array[...] = updated

    def _take_part(self) -> list[tuple[Exchange, np.ndarray]]:
        """Make the exchanges of a train step that are left without anything of this worker; return them with the sums."""
        return [(exchange, self.exchange(np.zeros(1 + 2 * exchange.channels))) for exchange in self._exchanges[self._done :]]

    def exchange(self, sums: np.ndarray) -> np.ndarray:
        """Return the sums of the workers' sums."""
        self._done += 1
        self.workers.strategy.all_reduce(sums)
        return sums

    def statistics(self, mean: np.ndarray, variance: np.ndarray, count: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and the variance of the elements of all workers, float64 [c]. count: the elements of this worker per channel."""
        exact = mean.astype(np.float64)
        return combined(self.exchange(np.concatenate([[count], count * exact, count * (variance + exact * exact)])))

    def gradient_means(self, dscale: np.ndarray, dbias: np.ndarray, count: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the means of dy times the normalized x and of dy over the elements of all workers, float64 [c], as gradients of this worker's loss: those
        of the others count by their shares of the samples."""
        total = self.exchange(np.concatenate([[count], self._share * dscale.astype(np.float64), self._share * dbias.astype(np.float64)]))
        products, means = np.split(total[1:] / (total[0] * self._share), 2)
        return products, means

    # ---- the graph

    def _rewrite(self, model: Model) -> Model:
        """Return a copy of a training model with synchronized normalizations."""
        rewriting = _Rewriting(model.copy(), self._number)
        self._exchanges = rewriting.exchanges
        return rewriting.model


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the workers exchange for one operator of a train step."""

    channels: int
    running: tuple[str, str] | None = None
    """The running mean and variance that it updates, in the forward pass."""
    momentum: float = 0.0
    """Of the update."""


def combined(total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the variance from the sums over all workers: of counts, of elements and of squares."""
    means, squares = np.split(total[1:] / total[0], 2)
    return means, np.maximum(squares - means * means, 0)


def updated_statistics(running: Sequence[np.ndarray], found: Sequence[np.ndarray], momentum: float) -> list[np.ndarray]:
    """Return the running mean and variance after a batch."""
    return [old * momentum + new * (1 - momentum) for old, new in zip(running, found, strict=True)]


class _Rewriting:
    """The replacement of all batch normalizations of a training model. number: of the instance that synchronizes them."""

    def __init__(self, model: Model, number: int) -> None:
        self.model, self.graph, self.number = model, model.graph, number
        self.exchanges: list[Exchange] = []
        self._names = NameSource(self.graph.names())
        self._token = ""
        model.opsets[DOMAIN] = 1
        read = {name for node in self.graph.nodes for name in node.inputs}
        synchronized: set[str] = set()
        nodes, self.graph.nodes = self.graph.nodes, []
        for node in nodes:
            if node.op_type == "BatchNormInternal":
                synchronized.add(node.outputs[3])
                self._normalization(node)
            elif node.op_type == "BatchNormalizationGrad" and node.inputs[3] in synchronized and node.outputs[0] in read:
                self._gradient(node)
            elif statistics_of(node):
                raise InvalidArgumentError("expected BatchNormInternal in a training model for synchronized batch normalization, got BatchNormalization "
                                           f"in the node {node.name!r}")
            else:
                self.graph.nodes.append(node)

    def _normalization(self, node: Node) -> None:
        x, scale, bias, running_mean, running_variance = node.inputs
        y, new_mean, new_variance, mean, inverse = node.outputs
        epsilon, momentum = (float(node.attributes[name]) for name in ("epsilon", "momentum"))
        rank = self._rank(x)
        local_mean = self._mean(x, rank)
        centered = self._op("Sub", x, self._op("Reshape", local_mean, self._constant([-1] + [1] * (rank - 2))))
        local_variance = self._mean(self._op("Mul", centered, centered), rank)
        variance = self._names.unique(f"{mean}_variance")
        self._exchanging(SYNCHRONIZED_STATISTICS, [local_mean, local_variance, self._op("Size", x), running_mean, running_variance],
                         [new_mean, new_variance, mean, variance, inverse], Exchange(self._channels(scale), (running_mean, running_variance), momentum),
                         epsilon=epsilon, momentum=momentum)
        self.graph.nodes.append(Node("BatchNormalization", [x, scale, bias, mean, variance], [y], node.name, attributes={"epsilon": epsilon}))

    def _gradient(self, node: Node) -> None:
        dy, x, scale, mean, inverse = node.inputs
        dx, dscale, dbias = (name or self._names.unique(f"{node.inputs[0]}_sum") for name in node.outputs)
        self.graph.nodes.append(Node(node.op_type, list(node.inputs), ["", dscale, dbias], node.name, node.domain, dict(node.attributes)))
        factors = [self._names.unique(f"{dx}_{label}") for label in ("dy_factor", "x_factor", "x_mean", "offset")]
        self._exchanging(GRADIENT_FACTORS, [dscale, dbias, self._op("Size", x), scale, mean, inverse], factors, Exchange(self._channels(scale)),
                         rank=self._rank(x))
        of_dy, of_x, center, offset = factors
        terms = self._op("Add", self._op("Mul", dy, of_dy), self._op("Mul", self._op("Sub", x, center), of_x))
        self.graph.nodes.append(Node("Add", [terms, offset], [dx], self._names.unique(f"{node.name}_dx")))

    def _exchanging(self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], exchange: Exchange, **attributes: Any) -> None:
        """Add an operator that makes an exchange, after those before it."""
        self.exchanges.append(exchange)
        token = self._names.unique("exchange")
        self.graph.nodes.append(Node(op_type, [*inputs, self._token], [token, *outputs], self._names.unique(op_type), DOMAIN,
                                     {"instance": self.number, **attributes}))
        self._token = token

    def _channels(self, scale: str) -> int:
        return self.graph.types[scale].sizes[0]

    def _rank(self, value: str) -> int:
        return len(self.graph.types[value].shape or ())

    def _op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        output = self._names.unique(f"{inputs[0]}_{op_type}")
        self.graph.nodes.append(Node(op_type, list(inputs), [output], self._names.unique(f"{op_type}_of_{inputs[0]}"), attributes=attributes))
        return output

    def _mean(self, value: str, rank: int) -> str:
        """Add the mean over all axes but that of channels."""
        axes = [0, *range(2, rank)]
        if self.model.opsets.get("", 0) < 18:
            return self._op("ReduceMean", value, axes=tuple(axes), keepdims=0)
        return self._op("ReduceMean", value, self._constant(axes), keepdims=0)

    def _constant(self, numbers: Sequence[int]) -> str:
        name = self._names.unique("axes")
        self.graph.initializers[name] = np.array(numbers, np.int64)
        return name


# ---- the operators


def _statistics(mean: np.ndarray, variance: np.ndarray, size: np.ndarray, running_mean: np.ndarray, running_variance: np.ndarray, token: np.ndarray | None,
                *, instance: int, epsilon: float, momentum: float) -> tuple[np.ndarray, ...]:
    """(token, new running mean, new running variance, mean, variance, 1 / standard deviation) of the batches of all workers"""
    found = SynchronizedBatchNormalization.numbered(instance).statistics(mean, variance, int(size) / len(mean))
    running = updated_statistics((running_mean, running_variance), found, momentum)
    return np.zeros(1, np.float32), *(array.astype(mean.dtype) for array in (*running, *found, 1 / np.sqrt(found[1] + epsilon)))


def _statistics_types(inputs: Sequence[Type], **attributes: Any) -> list[Type]:
    return [("float32", (1,)), *[inputs[3]] * 5]


def _gradient_factors(dscale: np.ndarray, dbias: np.ndarray, size: np.ndarray, scale: np.ndarray, mean: np.ndarray, inverse: np.ndarray,
                      token: np.ndarray | None, *, instance: int, rank: int) -> tuple[np.ndarray, ...]:
    """(token, factor of dy, factor of x - mean, mean, offset): the gradient of x is the sum of the products and of the offset"""
    products, means = SynchronizedBatchNormalization.numbered(instance).gradient_means(dscale, dbias, int(size) / len(mean))
    of_dy = scale * inverse.astype(np.float64)
    factors = of_dy, -of_dy * inverse * products, mean, -of_dy * means
    return np.zeros(1, np.float32), *(array.astype(scale.dtype).reshape([-1] + [1] * (rank - 2)) for array in factors)


def _gradient_factors_types(inputs: Sequence[Type], *, rank: int, **attributes: Any) -> list[Type]:
    dtype, shape = inputs[3]
    return [("float32", (1,)), *[(dtype, (*shape, *[1] * (rank - 2)))] * 4]


register_operator(DOMAIN, SYNCHRONIZED_STATISTICS, _statistics, infer=_statistics_types)
register_operator(DOMAIN, GRADIENT_FACTORS, _gradient_factors, infer=_gradient_factors_types)
