"""What concerns the optimizer in a training session: optimizer steps, learning rate, schedules, frozen parameters, parameter groups and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ortrain._core.engine import EngineHandle
from ortrain._core.fast_path import FastPath
from ortrain._core.session_lock import Lock
from ortrain.errors import ArgumentTypeError, InvalidArgumentError, InvalidStateError
from ortrain.ir import Model
from ortrain.ir.globs import expand
from ortrain.loading.loader import ModelSource, as_model
from ortrain.passes.head import HEAD, head_parameters
from ortrain.runtime.flat_buffers import flat_buffers_of
from ortrain.runtime.numbers import check_learning_rate, check_number
from ortrain.runtime.options import RunOptions, SessionOptions
from ortrain.runtime.segments import Sharding
from ortrain.runtime.state import TrainingState
from ortrain.training.gradients import Gradients
from ortrain.training.optimizer import Optimizer, check_kept
from ortrain.training.parameter_groups import PROPERTY, GroupSettings, ParameterGroup, from_json, to_json
from ortrain.training.recipe import OptimizerRecipe, read_recipe
from ortrain.training.update_nodes import Updates, check_recipe

if TYPE_CHECKING:
    from ortrain.runtime.runner import Runner
    from ortrain.training.gradient_noise import GradientNoise
    from ortrain.training.schedules import Schedule


class Optimization:
    """The optimizer's part of a TrainingSession, which provides the attributes below."""

    options: SessionOptions
    state: TrainingState
    steps: FastPath
    training_model: Model
    eval_model: Model | None
    optimizer_model: Model | None
    _handle: EngineHandle
    _lock: Lock
    _train_runner: Runner
    noise: GradientNoise | None

    def _make_train_runner(self) -> Runner:
        raise NotImplementedError

    def _ready(self, run_options: RunOptions | None) -> None:
        raise NotImplementedError

    def _set_up_optimization(self) -> None:
        """Create the optimizer, with the parameter groups of the checkpoint, once the state is bound."""
        self._schedule: Schedule | None = None
        self._gradient_changes = Gradients(self.state, self._handle)
        self._updates: Updates | None = None
        self._optimizer: Optimizer | None = None
        self._group_frozen: set[str] = set()
        self._shard: tuple[int, int] | None = None
        """The number of this process, and how many divide the optimizer's work; None where this one does all of it."""
        if self.optimizer_model is not None:
            recipe = read_recipe(self.optimizer_model)
            self._take_optimizer(recipe, GroupSettings(recipe, self.parameter_groups, self.state.trainable))

    # ---- the optimizer

    def load_optimizer(self, model: ModelSource) -> None:
        """Give the session its optimizer; parameter groups stay.

        Raises InvalidModelError when the model is not an optimizer model, InvalidArgumentError when it clips gradients and the session uses
        optimizer_in_backward, or when it has no weight decay and a parameter group sets one."""
        loaded = as_model(model)
        self._check_between_steps("the optimizer")
        with self._lock:
            recipe = read_recipe(loaded)
            settings = GroupSettings(recipe, self.parameter_groups, self.state.trainable)
            self._replace_optimizer(recipe, settings)
            self.optimizer_model = loaded

    def _replace_optimizer(self, recipe: OptimizerRecipe, settings: GroupSettings) -> None:
        self.steps.materialize_deferred_gradients()
        self._take_optimizer(recipe, settings)
        self._train_runner = self._make_train_runner()

    def _take_optimizer(self, recipe: OptimizerRecipe, settings: GroupSettings) -> None:
        if self.options.optimizer_in_backward:
            check_recipe(recipe)
        check_kept(recipe, self.state)
        if self._shard is not None:
            self.state.shard(Sharding(self.state.trainable_segments, *self._shard, whole_tensors=recipe.algorithm.per_tensor))
        self._optimizer = Optimizer(recipe, self.state, self._handle, settings, self._gradient_changes)
        self.state.masked = (self.state.masked - self._group_frozen) | settings.frozen
        self._group_frozen = settings.frozen
        self.steps.invalidate()
        self._updates = None if recipe.max_norms or self._shard is not None else Updates(recipe, self.state, settings)
        if self.options.optimizer_in_backward:
            self.steps.set_backward_updates(self._updates)
        else:
            self.steps.set_deferred_updates(self._updates)

    def shard_optimizer(self, rank: int, size: int, add_up: Callable[[float], float]) -> None:
        """Let optimizer steps update one of `size` shards of the trainable parameters, and keep the optimizer's moments of this shard alone (ZeRO-1).

        rank: the number of the shard, from 0. `state.sharding.bounds` are the bounds of all in the flat segments of the state; algorithms whose updates depend
        on whole tensors, such as LAMB, divide them between tensors. Before an optimizer step the gradients of the shard are to be those of all processes, and
        after it the processes exchange their parameters: ortrain.distributed.OptimizerSharding does both.
        add_up: returns the sum of a number over all processes, which all call together, for the norm of the gradients.

        Train steps defer no gradients from now on. The state writes no optimizer's moments any more, and there is no way back.
        Raises InvalidArgumentError for a rank that is not below the size and with optimizer_in_backward, InvalidStateError without an optimizer."""
        optimizer = self._need_optimizer("a shard of it")
        if not 0 <= rank < size:
            raise InvalidArgumentError(f"expected a rank from 0 to size - 1, got rank {rank} and size {size}")
        if self.options.optimizer_in_backward:
            raise InvalidArgumentError("expected a session without optimizer_in_backward for a shard of the optimizer, which needs summed gradients")
        with self._lock:
            self.keep_gradients()
            self._shard, self._gradient_changes.add_up = (rank, size), add_up
            self._gradient_changes.forget()
            self._replace_optimizer(optimizer.recipe, optimizer.settings)

    @property
    def has_optimizer(self) -> bool:
        """Whether there is an optimizer model; without one a session computes gradients, evaluates and predicts."""
        return self._optimizer is not None

    def _need_optimizer(self, what: str) -> Optimizer:
        if self._optimizer is None:
            raise InvalidStateError(f"expected an optimizer model for {what}, the session has none")
        return self._optimizer

    def optimizer_step(self, *, run_options: RunOptions | None = None) -> None:
        """Update the trainable parameters from their gradients, which gradient_scale, clip_value and clip_norm change first, in this order.

        Raises InvalidStateError without an optimizer or with invalid gradients."""
        if run_options is None and self.noise is None and self.steps.update():
            return
        with self._lock:
            self._ready(run_options)
            optimizer = self._need_optimizer("an optimizer step")
            if self.options.optimizer_in_backward:
                if not self.steps.consume_backward_update():
                    raise InvalidStateError("expected a train step before each optimizer step: with optimizer_in_backward it is what updates the parameters")
                return
            self._check_gradients()
            if self.noise is not None:
                self.add_noise()
            if self._gradient_changes.are_changed:
                self.steps.materialize_deferred_gradients()
            pending = self.steps.pending
            optimizer.prepare(pending.deferred_names if pending is not None else frozenset())
            self.steps.run_deferred_updates()
            optimizer.step(self.steps.learning_rate)
            self.steps.remember_update(*optimizer.repeatable)

    def add_noise(self) -> None:
        """Add the noise of differential privacy to the gradients, once after the last step; an optimizer step does it by itself where that was not done.

        Whatever reads the gradients before an optimizer step, and sends or stores what it finds, calls this first. Raises InvalidStateError without
        SessionOptions.differential_privacy, and for gradients that are not valid."""
        with self._lock:
            if self.noise is None:
                raise InvalidStateError("expected a session with SessionOptions(differential_privacy=...) for noise in its gradients")
            self._ready(None)
            self._check_gradients()
            self.keep_gradients()
            self.noise.add([buffer.array for buffer in flat_buffers_of(self.state.gradient_segments, self.state.masked)], self._handle.n_runs)

    def _check_between_steps(self, what: str) -> None:
        """Refuse a change between a train step and its optimizer step when the train step has already used the old setting."""
        if self.steps.awaits_optimizer:
            raise InvalidStateError(f"expected {what} to change before the train step or after the optimizer step: with optimizer_in_backward the train step "
                                    "updates the parameters")

    # ---- gradients

    def keep_gradients(self) -> None:
        """Materialize deferred gradients, and stop deferring them in later train steps: somebody reads the gradients or adds to them."""
        with self._lock:
            self.steps.defers_gradients = False
            self.steps.materialize_deferred_gradients()

    @property
    def gradients_valid(self) -> bool:
        """Whether gradients are valid: False from a train step that failed half way until lazy_reset_grad and another train step."""
        return self.steps.gradients_valid

    def _check_gradients(self) -> None:
        if not self.steps.gradients_valid:
            raise InvalidStateError("expected valid gradients, but the last train step failed half way: call lazy_reset_grad and train again")

    def gradient_norm(self) -> float:
        """Return the L2 norm of the gradients of all trainable parameters that are not frozen, as they are: before an optimizer step scales or clips them.

        Reading it makes train steps compute and keep all gradients from then on.

        Raises InvalidStateError for gradients that are not valid, and with optimizer_in_backward, which keeps none."""
        with self._lock:
            self._ready(None)
            self._check_gradients()
            if self.options.optimizer_in_backward:
                raise InvalidStateError("expected gradients to read, there are none with optimizer_in_backward")
            self.keep_gradients()
            self._gradient_changes.prepare(self.state.masked)
            return self._gradient_changes.norm()

    @property
    def last_gradient_norm(self) -> float | None:
        """The norm of the gradients, scaled but not yet clipped by it, in the last optimizer step that clipped by the norm; None before."""
        return self._gradient_changes.last_norm

    @property
    def clip_norm(self) -> float | None:
        """Limit of the common L2 norm of the gradients in optimizer steps; None for no limit.

        Setting it raises ArgumentTypeError for what is no number, InvalidArgumentError unless it is finite and above 0, and with optimizer_in_backward."""
        return self._gradient_changes.max_norm

    @clip_norm.setter
    def clip_norm(self, value: float | None) -> None:
        self._change_gradients(max_norm=None if value is None else check_number(value, "clip_norm", positive=True))

    @property
    def clip_value(self) -> float | None:
        """Limit of the absolute value of each element of the gradients in optimizer steps; None for no limit. Errors as clip_norm."""
        return self._gradient_changes.max_value

    @clip_value.setter
    def clip_value(self, value: float | None) -> None:
        self._change_gradients(max_value=None if value is None else check_number(value, "clip_value", positive=True))

    @property
    def gradient_scale(self) -> float:
        """Factor of the gradients in optimizer steps, before clipping: 1/n averages the gradients that n train steps have added up. Errors as clip_norm."""
        return self._gradient_changes.scale

    @gradient_scale.setter
    def gradient_scale(self, value: float) -> None:
        self._change_gradients(scale=check_number(value, "gradient_scale", positive=True))

    def _change_gradients(self, **settings: float | None) -> None:
        """Change how optimizer steps change gradients. They need all gradients at once then, so that train steps defer none from now on."""
        wanted = Gradients(self.state, self._handle)
        for name, value in settings.items():
            setattr(wanted, name, value)
        if wanted.are_changed and self.options.optimizer_in_backward:
            raise InvalidArgumentError("expected no clipping and no scale of gradients with optimizer_in_backward: no two gradients need be there at once")
        with self._lock:
            for name, value in settings.items():
                setattr(self._gradient_changes, name, value)
            if self._gradient_changes.are_changed:
                self.keep_gradients()
            self.steps.remember_update(None, None)

    # ---- frozen parameters and parameter groups

    def freeze(self, *names: str) -> None:
        """Exclude trainable parameters from optimizer steps; their gradients are still computed.

        names: names, patterns such as "backbone.*", or "head" for the layers behind the features.

        A batch normalization that the artifacts train keeps using the statistics of the batch. Raises ParameterNotFoundError."""
        found = self._expand_trainable(names, "freeze()")
        self._check_between_steps("frozen parameters")
        self.state.masked |= found

    def unfreeze(self, *names: str) -> None:
        """Include parameters again that freeze() or a parameter group excluded. names: as of freeze.

        Raises InvalidArgumentError for parameters the training model computes no gradient of, ParameterNotFoundError."""
        found = self._expand_trainable(names, "unfreeze()")
        self._check_between_steps("frozen parameters")
        self.state.masked -= found

    def _expand_trainable(self, names: Sequence[str], where: str) -> set[str]:
        for name in names:
            if name in self.state.frozen:
                raise InvalidArgumentError(f"expected a parameter the training model has a gradient of, {name!r} was frozen when it was made")
        return set(expand(names, self.state.trainable, where, {HEAD: self._head}))

    def _head(self) -> list[str]:
        model = self.eval_model or self.training_model
        return head_parameters(model, self.state.trainable, model.graph.outputs[0])

    @property
    def parameter_groups(self) -> list[ParameterGroup]:
        """The groups that set_parameter_groups() has set, or that the checkpoint has."""
        if self._optimizer is not None:
            return list(self._optimizer.settings.groups)
        stored = self.state.properties.get(PROPERTY)
        return [] if stored is None else from_json(stored)

    def set_parameter_groups(self, groups: Sequence[ParameterGroup]) -> None:
        """Give parameters a learning rate, a weight decay or a freeze of their own, in place of all earlier groups.

        groups: a parameter belongs to the first group that matches its name; those that none matches are updated as without groups. Checkpoints store the
        groups, and sessions that load them apply them again.

        Raises InvalidStateError without an optimizer, ArgumentTypeError for what is no ParameterGroup, ParameterNotFoundError for a pattern that matches no
        trainable parameter, InvalidArgumentError for a weight decay that the optimizer does not have."""
        recipe = self._need_optimizer("parameter groups").recipe
        self._check_between_steps("parameter groups")
        wrong = [group for group in groups if not isinstance(group, ParameterGroup)]
        if wrong:
            raise ArgumentTypeError(f"expected a list of ParameterGroup, got {wrong[0]!r}")
        with self._lock:
            self._replace_optimizer(recipe, GroupSettings(recipe, groups, self.state.trainable))
            self.state.properties.pop(PROPERTY, None)
            if groups:
                self.state.set_property(PROPERTY, to_json(groups))

    # ---- learning rate

    @property
    def learning_rate(self) -> float:
        """The optimizer's current learning rate, at least 0. Raises InvalidStateError without an optimizer.

        Setting it raises ParameterTypeError for what is no number, InvalidArgumentError for a number that is negative or not finite."""
        self._need_optimizer("a learning rate")
        return self.steps.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        value = check_learning_rate(value)
        self._need_optimizer("a learning rate")
        self._check_between_steps("the learning rate")
        self.steps.learning_rate = value

    def register_schedule(self, schedule: Schedule) -> None:
        """Set a learning-rate schedule and apply it at once.

        schedule: one of ortrain.training.schedules, or an object with their `initial_learning_rate` and `rate(step)`. Raises InvalidStateError without an
        optimizer, InvalidArgumentError when the schedule gives a learning rate that is negative or not finite."""
        self._need_optimizer("a learning-rate schedule")
        self._check_between_steps("the learning rate")
        rate, initial = check_learning_rate(schedule.rate(self.state.optimizer_step)), check_learning_rate(schedule.initial_learning_rate)
        self._schedule = schedule
        self.state.initial_learning_rate = initial
        self.steps.learning_rate = rate

    def schedule_step(self) -> None:
        """Set the learning rate that the schedule gives for the completed optimizer steps. Raises InvalidStateError without an optimizer or a schedule."""
        self._need_optimizer("a learning-rate schedule")
        if self._schedule is None:
            raise InvalidStateError("expected a registered learning-rate schedule, the session has none")
        self._check_between_steps("the learning rate")
        self.steps.learning_rate = check_learning_rate(self._schedule.rate(self.state.optimizer_step))
