"""SCAFFOLD on the server, as a strategy of Flower. The client's part is in ortrain.federated.control_variates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ortrain.errors import InvalidArgumentError, OrtrainError
from ortrain.federated.arrays import checked_arrays, float32_arrays, record_of_arrays
from ortrain.federated.flower import error_reply, flower
from ortrain.federated.messages import CONTROL_VARIATES
from ortrain.federated.round_settings import ACKNOWLEDGED_CONTROL_VARIATE, CONTROL_VARIATE
from ortrain.runtime.numbers import check_number

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import FedAvg
else:
    FedAvg = flower("flwr.serverapp.strategy").FedAvg


class Scaffold(FedAvg):  # type: ignore[misc]  # Flower may not be installed where types are checked
    """Federated averaging for clients whose data differ: each step of a client is corrected by what the gradients of all clients differ from its own.

        Scaffold(fraction_train=0.1).start(GuardedGrid(grid), initial_arrays(session), num_rounds=100)

    server_learning_rate: above 0; the global arrays move by so much of the way to the mean of the clients' arrays. arguments: those of Flower's FedAvg.

    The server and every client keep a control variate, an estimate of a gradient. A client steps along g_i - c_i + c, replies with its arrays and the change of
    c_i, and keeps the new c_i in the state of its context. c is the mean of all c_i, weighted by the clients' examples as the arrays are; those of clients
    that have not yet taken part are zero, and their examples are taken to be as many as the others have on average. With clients of equal size it is the
    paper's algorithm. Messages and replies have twice the size of FedAvg's.

    Replies with wrong control variates become replies with an error, and are left out. A client whose reply does not arrive goes on with the variate that the
    server knows. Raises InvalidArgumentError or ArgumentTypeError for a wrong server_learning_rate, MissingPackageError without Flower when it is imported.

    Source: S. P. Karimireddy and others, SCAFFOLD: Stochastic Controlled Averaging for Federated Learning (2020)."""

    def __init__(self, *, server_learning_rate: float = 1.0, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.server_learning_rate = check_number(server_learning_rate, "server_learning_rate", positive=True)
        self._rounds = 0
        self._sent: dict[int, Message] = {}
        self._global: dict[str, np.ndarray] = {}
        self._nodes = 0
        self._sums: dict[str, np.ndarray] = {}
        """Array -> the sum of the clients' control variates, each times the examples of the client."""
        self._examples: dict[int, float] = {}
        self._acknowledged: dict[int, int] = {}
        """Node -> the number of its control variate that is in the sums."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Return the messages of FedAvg, with the server's control variate and the number of the receiver's that it includes."""
        app = flower()
        self._rounds += 1
        self._global = float32_arrays(arrays)
        self._nodes = len(list(grid.get_node_ids()))
        control_variate = record_of_arrays(self.control_variate())
        self._sent = {}
        for message in super().configure_train(server_round, arrays, config, grid):
            node = message.metadata.dst_node_id
            numbers = {CONTROL_VARIATE: self._rounds, ACKNOWLEDGED_CONTROL_VARIATE: self._acknowledged.get(node, 0)}
            content = app.RecordDict({self.arrayrecord_key: arrays, CONTROL_VARIATES: control_variate,
                                      self.configrecord_key: app.ConfigRecord(dict(config) | numbers)})
            self._sent[node] = app.Message(content=content, message_type=message.metadata.message_type, dst_node_id=node)
        return list(self._sent.values())

    def control_variate(self) -> dict[str, np.ndarray]:
        """Return the server's control variate: by array, the weighted mean of those of all clients."""
        examples = sum(self._examples.values())
        strangers = max(self._nodes - len(self._examples), 0)
        total = examples * (1 + strangers / max(len(self._examples), 1))
        return {name: (self._sums[name] / total).astype(np.float32) if name in self._sums else np.zeros_like(array) for name, array in self._global.items()}

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average arrays and metrics as FedAvg does, and take over the changes of the control variates."""
        changes: dict[int, dict[str, np.ndarray]] = {}
        checked = [self._without_change(reply, changes) for reply in replies]
        arrays, metrics = super().aggregate_train(server_round, checked)
        for reply in checked:
            if not reply.has_error():
                node = reply.metadata.src_node_id
                (record,) = reply.content.metric_records.values()
                self._take_over(node, changes[node], float(record[self.weighted_by_key]))
        if arrays is not None and self.server_learning_rate != 1:
            rate = self.server_learning_rate
            arrays = record_of_arrays({name: start + rate * (arrays[name].numpy() - start) for name, start in self._global.items()})
        return arrays, metrics

    def _without_change(self, reply: Message, changes: dict[int, dict[str, np.ndarray]]) -> Message:
        """Move the control variates of a reply to `changes`; return the reply, or one with an error in its place."""
        if reply.has_error():
            return reply
        node, record = reply.metadata.src_node_id, reply.content.array_records.get(CONTROL_VARIATES)
        try:
            if record is None:
                raise InvalidArgumentError(f"expected an ArrayRecord {CONTROL_VARIATES!r} in a reply to SCAFFOLD, got {sorted(reply.content)}")
            changes[node] = checked_arrays(record, self._global)
        except OrtrainError as error:
            return error_reply(error, self._sent[node])
        del reply.content[CONTROL_VARIATES]
        return reply

    def _take_over(self, node: int, change: dict[str, np.ndarray], examples: float) -> None:
        weight = self._examples.setdefault(node, examples)      # that of the client's variates in the sums, also if it has more examples now
        for name, array in change.items():
            self._sums[name] = self._sums.get(name, 0.0) + weight * array.astype(np.float64)
        self._acknowledged[node] = self._rounds
