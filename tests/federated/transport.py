"""Flower's transport within one process: strategies meet clients without a network and without other processes."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"                  # read when Flower is imported

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity


def message(kind: str, arrays: ArrayRecord, node: int = 0, **config: Any) -> Message:
    """Return a message of a server. config: entries of its ConfigRecord, with _ in place of -."""
    TaskIdentity.task_id = TaskIdentity.run_id = 1          # as Flower sets them in the process of a server
    TaskIdentity.node_id = 1
    settings = ConfigRecord({name.replace("_", "-"): value for name, value in config.items()})
    return Message(RecordDict({"arrays": arrays, "config": settings}), node, kind)


def context(node: int = 0, nodes: int = 1, run_config: Mapping[str, Any] | None = None) -> Context:
    """Return the context of a node in a simulation."""
    return Context(1, node, {"partition-id": node, "num-partitions": nodes}, RecordDict(), dict(run_config or {}))


class LocalGrid(Grid):
    """Hands the messages of a strategy to client apps, and keeps their contexts and the errors with which they replied.

    apps: node -> its app. answers: may drop or change a reply: (node, reply) -> reply or None. run_config: that of the contexts, which are pickled in between,
    as in a simulation."""

    def __init__(self, apps: Mapping[int, ClientApp], answers: Callable[[int, Message], Message | None] = lambda node, reply: reply,
                 run_config: Mapping[str, Any] | None = None) -> None:
        self.apps = dict(apps)
        self.contexts = {node: context(node, len(apps), run_config) for node in apps}
        self.answers = answers
        self.errors: list[str] = []
        TaskIdentity.task_id = TaskIdentity.run_id = 1
        TaskIdentity.node_id = 1

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = []
        for sent in messages:
            node = sent.metadata.dst_node_id
            node_context = pickle.loads(pickle.dumps(self.contexts[node]))
            reply = self.answers(node, self._answer(node, sent, node_context))
            self.contexts[node] = node_context
            if reply is not None:
                replies.append(reply)
                self.errors += [reply.error.reason] if reply.has_error() else []
        return replies

    def _answer(self, node: int, sent: Message, node_context: Context) -> Message:
        """Return the reply of an app, or as Flower does an error when it raises one."""
        try:
            return self.apps[node](copy.deepcopy(sent), node_context)       # mods change messages, whose content a strategy shares between clients
        except Exception as error:
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=sent)

    def get_node_ids(self) -> list[int]:
        return list(self.apps)

    @property
    def run(self) -> Run:
        return Run.create_empty(1)

    # ---- what strategies do not call

    def _refuse(self, *arguments: Any, **named: Any) -> Any:
        raise NotImplementedError

    set_run = create_message = push_messages = pull_messages = _refuse
