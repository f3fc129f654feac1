"""The client: what answers a server's messages."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ortrain.data import DataLoader, as_loader, split
from ortrain.errors import ArgumentTypeError, InvalidArgumentError, InvalidStateError
from ortrain.federated.control_variates import ControlVariates
from ortrain.federated.flower import NUMBER_OF_EXAMPLES, flower
from ortrain.federated.gradient_terms import GradientTerm, ProximalTerm
from ortrain.federated.messages import CONTROL_VARIATES, Request, answer
from ortrain.federated.workspace import Workspace
from ortrain.trainer.evaluation import evaluate_batches
from ortrain.trainer.loop import RunningMetrics
from ortrain.trainer.settings import TrainerSettings
from ortrain.trainer.trainer import EVALUATION_BATCH_SIZE, Trainer
from ortrain.training.session import TrainingSession

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

SETTINGS = ("seed", "metrics", "accumulate", "accumulation", "clip_norm", "clip_value", "callbacks")
"""The settings of a Trainer that make sense within a round."""
BATCH_SIZE = 32

_lock = threading.Lock()
"""Held while a process answers a message: the session uses the threads of all processors anyway."""
_workspaces: dict[str, Workspace] = {}
"""The workspace of the client app that this process has served last, by its key. Objects of a client app do not live long enough to keep it: Flower's
simulation unpickles one for every message."""


def client_app(make_session: Callable[[], TrainingSession], data: Callable[[Context], Any], validation: float | Callable[[Context], Any] | None = None, *,
               personal: str | Iterable[str] = (), mods: Sequence[Any] = (), **settings: Any) -> ClientApp:
    """Return a Flower ClientApp whose clients train and evaluate a session.

        def make_session():
            return TrainingSession.from_model("model.onnx", loss="cross-entropy", optimizer="sgd")

        def data(context):
            return context.node_config["data"]              # a path such as data.npz

        app = client_app(make_session, data, validation=0.1)

    make_session: returns the session in which clients train. It is called once in a process, whose clients use the session one after the other, so that a
    simulation has as many sessions as processes, however many clients it has.
    data: returns what a client trains on, of any kind that ortrain.data lists, from its Context, whose node_config has what the node was started with, or
    "partition-id" and "num-partitions" in a simulation. It is called for every message.
    validation: the held-out data of a client, as a function like `data`, or a share of its data such as 0.1; without any, clients refuse to evaluate.
    personal: names and patterns of parameters and running statistics that do not travel. Each client keeps its own in the state of its context, from those of
    make_session on. "head" stands for the last layers (FedPer), "batch-normalization" for scales, biases and running statistics (FedBN),
    "running-statistics" for the latter alone.
    mods: Flower's, for all messages. settings: of a Trainer: seed, metrics, accumulate, accumulation, clip_norm, clip_value and callbacks.

    Messages. A client looks at the only ArrayRecord of a message, or with SCAFFOLD at that and its "control-variates", and at "epochs" (1 by default),
    "batch-size" (32), "learning-rate" (that of make_session), "proximal-mu" and "server-round" in its ConfigRecord. It replies to "train" with the arrays, and
    to both kinds of messages with a MetricRecord "metrics" of "num-examples", "loss", which is without the proximal term, and the metrics. Training begins with
    fresh moments, in an order of samples and with random masks that follow from seed, round and client.

    Errors of ortrain become replies with an error, so that strategies leave the client out; the global model and the client's personal arrays stay as they
    were. Raises MissingPackageError without Flower, ArgumentTypeError and InvalidArgumentError for wrong arguments.

    Sources: B. McMahan and others, Communication-Efficient Learning of Deep Networks from Decentralized Data (2017); T. Li and others, Federated Optimization
    in Heterogeneous Networks (2020); S. P. Karimireddy and others, SCAFFOLD (2020); X. Li and others, FedBN (2021); M. G. Arivazhagan and others, Federated
    Learning with Personalization Layers (2019)."""
    for name, function in {"make_session": make_session, "data": data}.items():
        if not callable(function):
            raise ArgumentTypeError(f"expected a function as {name}, got {type(function).__name__}")
    if validation is not None and not callable(validation) and not (isinstance(validation, float) and 0 < validation < 1):
        raise InvalidArgumentError(f"expected a function or a share in (0, 1) as validation, got {validation!r}")
    if unknown := sorted(settings.keys() - set(SETTINGS)):
        raise InvalidArgumentError(f"expected settings among {', '.join(SETTINGS)}, got {', '.join(unknown)}")
    TrainerSettings.of(settings)
    client = Client(uuid.uuid4().hex, make_session, data, validation, tuple([personal] if isinstance(personal, str) else personal), settings)
    app: ClientApp = flower("flwr.clientapp").ClientApp(mods=list(mods))
    app.train()(client.train)
    app.evaluate()(client.evaluate)
    return app


@dataclass(frozen=True)
class Client:
    """Answers messages. It holds what client_app() was given, and a key by which its copies in a process find their workspace."""

    key: str
    make_session: Callable[[], TrainingSession]
    data: Callable[[Context], Any]
    validation: float | Callable[[Context], Any] | None
    personal: tuple[str, ...]
    settings: Mapping[str, Any]

    # ---- messages

    def train(self, message: Message, context: Context) -> Message:
        """Reply with the arrays after local training, or with an error."""
        return self._reply(message, lambda workspace, request: self._train(workspace, request, context))

    def evaluate(self, message: Message, context: Context) -> Message:
        """Reply with loss and metrics of the held-out data, or with an error."""
        return self._reply(message, lambda workspace, request: self._evaluate(workspace, request, context))

    def _reply(self, message: Message, work: Callable[[Workspace, Request], dict[str, Any]]) -> Message:
        def locked(request: Request) -> dict[str, Any]:
            with _lock:
                workspace = self._workspace()
                return work(workspace, request.with_names(workspace.shared))

        return answer(message, locked)

    def _workspace(self) -> Workspace:
        if self.key not in _workspaces:
            for workspace in _workspaces.values():
                workspace.session.close()
            _workspaces.clear()
            _workspaces[self.key] = Workspace(self.make_session, self.personal)
        return _workspaces[self.key]

    def _train(self, workspace: Workspace, request: Request, context: Context) -> dict[str, Any]:
        settings = request.settings
        workspace.enter(request.arrays, context)
        workspace.prepare_training(settings, self.settings.get("seed", 0), _number_of(context))
        trainer = self._trainer(workspace)
        loader = self._loader(trainer, self.data(context), settings.batch_size or BATCH_SIZE)
        if isinstance(self.validation, float):
            loader, _ = split(loader, self.validation, trainer.options.seed)
        terms: list[GradientTerm] = [ProximalTerm(workspace.session, settings.proximal_mu, workspace.personal)] if settings.proximal_mu else []
        control_variates = ControlVariates(workspace, request, context) if settings.control_variate else None
        if control_variates is not None:
            terms.append(control_variates.term)
        trainer.epoch = settings.server_round * settings.epochs         # those of earlier rounds, whose orders of samples are not repeated
        trainer.fit(loader, epochs=trainer.epoch + settings.epochs, callbacks=terms)
        assert trainer.running is not None
        change = {} if control_variates is None else {CONTROL_VARIATES: control_variates.leave(context)}
        arrays = workspace.leave(request.arrays.keys(), context)
        return {request.key: arrays, **change, "metrics": _metrics(trainer.running.samples, trainer.running.results())}

    def _evaluate(self, workspace: Workspace, request: Request, context: Context) -> dict[str, Any]:
        if self.validation is None:
            raise InvalidStateError("expected validation data to evaluate, client_app() was given none")
        workspace.enter(request.arrays, context)
        trainer, batch_size = self._trainer(workspace), request.settings.batch_size or EVALUATION_BATCH_SIZE
        if isinstance(self.validation, float):
            loader = self._loader(trainer, self.data(context), batch_size)
            loader = split(loader, self.validation, trainer.options.seed)[1]
        else:
            loader = trainer.evaluation_loader(self.validation(context), batch_size=batch_size)
        running = RunningMetrics(trainer.metrics)
        results = evaluate_batches(workspace.session, loader, running, trainer.roles)
        return {"metrics": _metrics(running.samples, results)}

    # ---- parts

    def _trainer(self, workspace: Workspace) -> Trainer:
        return Trainer(workspace.session, progress=False, **self.settings)

    def _loader(self, trainer: Trainer, data: Any, batch_size: int) -> DataLoader:
        roles = trainer.roles
        return as_loader(data, names=roles.training, dtypes=roles.dtypes, batch_size=batch_size, seed=trainer.options.seed)


def _number_of(context: Context) -> int:
    """Return the number of a client: that of its partition, which is the same in every run of a simulation, or else that of its node."""
    partition = context.node_config.get("partition-id")
    return partition if isinstance(partition, int) and partition >= 0 else context.node_id


def _metrics(samples: int, results: Mapping[str, float]) -> Any:
    return flower().MetricRecord({NUMBER_OF_EXAMPLES: samples, **{name: float(value) for name, value in results.items()}})
