"""The training session, on which every facade stands."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ortrain._core.engine import EngineHandle
from ortrain._core.fast_path import FastPath
from ortrain.dtypes import BFLOAT16
from ortrain.errors import (
    IndexRangeError,
    InvalidArgumentError,
    InvalidStateError,
    LabelRangeError,
    OperatorFailedError,
    OrtrainError,
    ParameterTypeError,
    TerminatedError,
    UseAfterRelease,
)
from ortrain.formats.artifact_names import CHECKPOINT, EVAL_MODEL, OPTIMIZER_MODEL, TRAINING_MODEL
from ortrain.formats.onnx_files import write_model
from ortrain.ir import Model
from ortrain.loading.loader import ModelSource, as_model
from ortrain.runtime.numbers import check_learning_rate
from ortrain.runtime.options import RunOptions, SessionOptions, check_parameter_dtype, check_patterns, check_precision, check_share
from ortrain.runtime.parameters import Parameters
from ortrain.runtime.runner import Runner
from ortrain.runtime.seed import current_seed
from ortrain.runtime.state import DEFAULT_LEARNING_RATE, TrainingState, widened
from ortrain.runtime.values import check_device
from ortrain.training.binding import bind_parameters, eval_runner, parameter_arrays, training_runner
from ortrain.training.copying import CopyableSession
from ortrain.training.flat_buffers import FlatBuffers
from ortrain.training.optimization import Optimization

if TYPE_CHECKING:
    from ortrain.artifacts import Artifacts
    from ortrain.passes.specialization import InputShapes
    from ortrain.runtime.profiling import Profiling
    from ortrain.training.gradient_noise import GradientNoise


class TrainingSession(Optimization, FlatBuffers, CopyableSession):
    """A model in training: forward, backward and optimizer steps over one state.

    training_model, eval_model, optimizer_model: the artifacts, each as a path, bytes, an onnx.ModelProto or an ortrain.ir.Model; eval and optimizer
    model may be None. With an optimizer model the memory of its moments is allocated at once; a session that only evaluates can do without one.
    state: the TrainingState to train. The session binds it; it still belongs to the caller.
    options: threads, memory and numerical options. device: must be "cpu".

    Raises ArtifactNotFoundError, InvalidModelError, InvalidCheckpointError when state and models do not fit each other, UnsupportedDeviceError."""

    def __init__(self, training_model: ModelSource, state: TrainingState, eval_model: ModelSource | None = None,
                 optimizer_model: ModelSource | None = None, *, options: SessionOptions | None = None, device: str = "cpu") -> None:
        check_device(device)
        self.options = options or SessionOptions()
        self.state = state
        self.training_model = as_model(training_model)
        self.eval_model = None if eval_model is None else as_model(eval_model)
        self.optimizer_model = None if optimizer_model is None else as_model(optimizer_model)
        self._handle = EngineHandle(self.options.threads(), current_seed())
        self._handle.winograd = self.options.enable_winograd
        self._handle.amx = self.options.enable_amx
        self._handle.precision = check_precision(self.options.precision)
        self._handle.float32_nodes = check_patterns(self.options.float32_nodes)
        self._handle.elementwise_fusion = self.options.enable_elementwise_fusion
        self._handle.rematerialization = check_share(self.options.rematerialization)
        self._reset_flag = np.zeros(1, np.bool_)
        self.steps = FastPath(self._handle, state, self._reset_flag, DEFAULT_LEARNING_RATE)
        """The fast path of the training loop; facades try it before they call the session."""
        self._lock = self.steps.lock
        self._closed = False
        self._forward_outputs: list[str] | None = None
        self._rewrite: Callable[[Model], Model] | None = None
        self._predictors: dict[tuple[str, ...], Runner] = {}
        self._input_gradient_runners: dict[tuple[str, ...] | None, tuple[Runner, list[str]]] = {}
        bind_parameters(self.training_model.graph, state, check_parameter_dtype(self.options.parameter_dtype))
        if self.options.parameter_dtype == BFLOAT16 and state.rounding_seed is None:
            state.rounding_seed = self._handle.seed
        self._gradients = state.gradients_by(self)
        self.noise = self._make_noise()
        """What differential privacy adds to the gradients; None without SessionOptions.differential_privacy."""
        if self.options.optimizer_in_backward:
            self._gradients = {}
            state.drop_gradients()
        self._set_up_optimization()
        self._train_runner = self._make_train_runner()
        self._eval_runner = None if self.eval_model is None else self._make_eval_runner(self.eval_model, self.eval_model.graph.outputs, "eval model")

    # ---- construction

    @classmethod
    def from_model(cls, model: ModelSource, *, loss: Any = None, optimizer: Any = None, requires_grad: Sequence[str] | None = None,
                   frozen_params: Sequence[str] | None = None, loss_input_names: Sequence[str] | None = None,
                   additional_output_names: Sequence[str] | None = None, learning_rate: float = DEFAULT_LEARNING_RATE,
                   options: SessionOptions | None = None, input_shapes: InputShapes | None = None,
                   input_values: Mapping[str, Any] | None = None) -> TrainingSession:
        """Create a session straight from a forward model; the artifacts are made in memory.

        loss: a LossType, an onnxblock loss, or None when the model's first output is the loss.
        optimizer: an OptimType, a name such as "adamw", "sgd" or "lion", an onnxblock optimizer, or None.
        requires_grad: names of the weights to train, patterns such as "layer4.*", or "head"; None with an optimizer trains every float weight that reaches
        the loss. learning_rate: finite, at least 0.
        The other parameters and the errors are those of generate_artifacts."""
        from ortrain.artifacts import build_artifacts

        learning_rate = check_learning_rate(learning_rate)
        source = as_model(model)
        made = build_artifacts(model, requires_grad=requires_grad, frozen_params=frozen_params, loss=loss, optimizer=optimizer,
                               additional_output_names=list(additional_output_names) if additional_output_names else None,
                               loss_input_names=list(loss_input_names) if loss_input_names else None,
                               input_shapes=input_shapes, input_values=input_values, name_loss=True)
        session = cls._from_artifacts(made, options)
        session._forward_outputs = list(source.graph.outputs)
        if optimizer is not None:
            session.learning_rate = learning_rate
        return session

    @classmethod
    def _from_artifacts(cls, made: Artifacts, options: SessionOptions | None) -> TrainingSession:
        return cls(made.training, TrainingState(made.checkpoint), made.eval, made.optimizer, options=options)

    @classmethod
    def from_artifacts(cls, directory: str | os.PathLike[str], *, prefix: str = "", checkpoint: str | os.PathLike[str] | None = None,
                       options: SessionOptions | None = None) -> TrainingSession:
        """Create a session from a folder that generate_artifacts wrote; `checkpoint` replaces the folder's own checkpoint file."""
        folder = Path(directory)

        def optional(name: str) -> Path | None:
            path = folder / f"{prefix}{name}"
            return path if path.exists() else None

        state = TrainingState.load(checkpoint if checkpoint is not None else folder / f"{prefix}{CHECKPOINT}")
        return cls(folder / f"{prefix}{TRAINING_MODEL}", state, optional(EVAL_MODEL), optional(OPTIMIZER_MODEL), options=options)

    def _make_noise(self) -> GradientNoise | None:
        if self.options.differential_privacy is None:
            return None
        if self.options.optimizer_in_backward:
            raise InvalidArgumentError("expected a session without optimizer_in_backward for differential privacy, which adds noise to whole gradients")
        if self.options.precision != "float32":
            raise InvalidArgumentError("expected the precision float32 with differential privacy, whose norms are to be those of what is added up, got "
                                       f"{self.options.precision!r}")
        from ortrain.training.gradient_noise import GradientNoise

        return GradientNoise(self.options.differential_privacy, self._handle)

    def _make_train_runner(self) -> Runner:
        keeps_gradients = self.watches_gradients or self.noise is not None      # those that are updated elsewhere would be deferred
        updates, clipping = None if keeps_gradients else self._updates, None if self.noise is None else self.noise.inputs
        return training_runner(self.training_model, self.state, self._gradients, self._reset_flag, self._handle, updates,
                               in_backward=self.options.optimizer_in_backward, rewrite=self._rewrite, clipping=clipping)

    def rewrite_train_steps(self, rewrite: Callable[[Model], Model]) -> None:
        """Run train steps by what a function makes of the training model, whose artifacts stay as they are.

        rewrite: returns a changed copy of a model with the same inputs and outputs, whenever train steps are planned anew."""
        with self._lock:
            self._ready(None)
            if self.noise is not None:
                raise InvalidArgumentError("expected a session without differential privacy for train steps with synchronized batch normalization")
            self.steps.materialize_deferred_gradients()
            self._rewrite = rewrite
            self.steps.invalidate()
            self._train_runner = self._make_train_runner()

    def _make_eval_runner(self, model: Model, outputs: Sequence[str], where: str, prune: bool = False) -> Runner:
        return eval_runner(model, outputs, self.state, self._handle, where, prune)

    # ---- steps

    def train_step(self, *inputs: Any, out: Sequence[Any] | None = None, run_options: RunOptions | None = None, **named: Any) -> list[np.ndarray]:
        """Run forward and backward on one batch and accumulate the gradients; return the loss and the additional outputs.

        inputs: arrays, OrtValues or anything with __array__ or __dlpack__, in the order of input_names(), or by name.
        out: arrays or OrtValues that receive the outputs, None for an output that is to be allocated. Raises OutputShapeError when one does not fit. They hold
        anything after a TerminatedError or OperatorFailedError, or an index out of range that the model has computed.

        Raises InputCountError, InputNameError, InputTypeError, InputRankError, InputShapeError, EmptyBatchError, LabelRangeError or IndexRangeError,
        after which nothing has changed. With optimizer_in_backward, raises InvalidStateError without an optimizer step and a gradient reset since the
        previous train step."""
        if out is None and run_options is None and not named:
            result = self.steps.train(inputs)
            if result is not None:
                return result
        with self._lock:
            self._ready(run_options)
            self._begin_train_step()
            runner, overwrite, runs = self._train_runner, self.steps.overwrite, self._handle.n_runs
            values = runner.arguments(inputs, named)
            self._reset_flag[0] = overwrite
            try:
                result = runner.run(values, overwrite, run_options, out, self.steps.needs_all_gradients(), self._watch())
                assert runner.last is not None
                self.steps.finish_train_step(runner.last, overwrite)
            except (IndexRangeError, LabelRangeError, OperatorFailedError, TerminatedError):
                if runner.last is not None:
                    self.steps.fail_train_step(runner.last)
                raise
            # interrupted, out of memory for the results, or by a callback: how far the step came is unknown, unless it was refused before it began
            except BaseException as error:
                if self._handle.n_runs > runs and (self.watches_gradients or not isinstance(error, OrtrainError)):
                    self.steps.invalidate_gradients()
                raise
            self.steps.remember_program(None if self.watches_gradients else runner.repeatable, runner.refusal)
            return result

    def train_step_without_samples(self) -> None:
        """Take the place of a train step for a batch that has no samples, as Poisson sampling makes them: gradients are zero, or stay where they are added up.

        The optimizer step then adds its noise, as it has to. Raises InvalidStateError without SessionOptions.differential_privacy."""
        with self._lock:
            self._ready(None)
            if self.noise is None:
                raise InvalidStateError("expected a session with SessionOptions(differential_privacy=...) for a train step without samples")
            self.noise.check()
            self.keep_gradients()
            if self.steps.overwrite:
                for segment in self.state.gradient_segments:
                    segment.array[...] = 0
            self.steps.overwrite = False
            self.noise.forget()

    def _begin_train_step(self) -> None:
        if self.noise is not None:
            self.noise.check()
        if self.options.optimizer_in_backward:
            self._need_optimizer("a train step with optimizer_in_backward")
            if not self.steps.begin_train_step():
                missing = "an optimizer step" if self.steps.awaits_optimizer else "a reset of the gradients"
                raise InvalidStateError(f"expected {missing} before the next train step: with optimizer_in_backward gradients cannot be added up")
        elif not self.steps.overwrite:
            self.keep_gradients()

    def eval_step(self, *inputs: Any, out: Sequence[Any] | None = None, run_options: RunOptions | None = None, **named: Any) -> list[np.ndarray]:
        """Run the eval model on one batch; return the loss and the additional outputs.

        Raises InvalidStateError without an eval model; other errors as train_step."""
        with self._lock:
            self._ready(run_options)
            runner = self._runner(training=False)
            return runner.run(runner.arguments(inputs, named), run_options=run_options, out=out)

    def check_inputs(self, *inputs: Any, training: bool = True, **named: Any) -> None:
        """Raise the input error that train_step, or with training=False eval_step, would raise for a batch, without running it; values are not looked at."""
        runner = self._runner(training)
        runner.check(runner.arguments(inputs, named))

    def predict(self, *inputs: Any, output_names: Sequence[str] | None = None, **named: Any) -> list[np.ndarray]:
        """Run the forward model with the current weights, without the loss.

        output_names: values of the eval model; by default the forward model's outputs, or else the eval model's additional outputs."""
        with self._lock:
            self._ready(None)
            names = tuple(output_names or self._default_outputs())
            if names not in self._predictors:
                from ortrain.passes.half_precision import restore_output_types
                from ortrain.passes.inference_export import check_outputs

                model = self._eval_or_fail().copy()
                check_outputs(model, names)
                restore_output_types(model, names)
                self._predictors[names] = self._make_eval_runner(model, names, "forward model", prune=True)
            runner = self._predictors[names]
            return runner.run(runner.arguments(inputs, named))

    def input_gradients(self, *inputs: Any, names: Sequence[str] | None = None, **named: Any) -> dict[str, np.ndarray]:
        """Compute the gradients of the loss with respect to inputs of the eval model, for saliency maps, adversarial examples or physics-informed
        losses.

        names: the inputs to differentiate; by default every float input that the loss depends on.
        Returns input name -> array of the input's shape, float32 for half-precision inputs. Parameters and their gradients do not change.

        Raises InvalidStateError without an eval model, UnreachableParameterError when the loss does not depend on an input, MissingGradientError;
        other errors as train_step."""
        with self._lock:
            self._ready(None)
            model = self._eval_or_fail()
            runner, wanted = self._input_gradient_runner(model, tuple(names) if names is not None else None)
            return dict(zip(wanted, runner.run(runner.arguments(inputs, named)), strict=True))

    def _input_gradient_runner(self, source: Model, names: tuple[str, ...] | None) -> tuple[Runner, list[str]]:
        if names not in self._input_gradient_runners:
            from ortrain.training.input_gradients import with_input_gradients

            model, gradients = with_input_gradients(source, names, self._runner(training=False).inputs, self.state)
            runner = self._make_eval_runner(model, list(gradients.values()), "eval model's input gradients")
            self._input_gradient_runners[names] = runner, list(gradients)
        return self._input_gradient_runners[names]

    def _default_outputs(self) -> list[str]:
        if self._forward_outputs is not None:
            return self._forward_outputs
        outputs = self._eval_or_fail().graph.outputs[1:]
        if not outputs:
            raise InvalidArgumentError("expected output_names: the eval model has no output besides the loss")
        return outputs

    def _eval_or_fail(self) -> Model:
        if self.eval_model is None:
            raise InvalidStateError("Eval model was not provided. Cannot export a model for inferencing.")
        return self.eval_model

    def profile(self) -> Profiling:
        """Profile every kernel call of the programs that run in the block `with session.profile() as profile:`.

        Print the profile, or write a Chrome trace with profile.save("trace.json"). Raises InvalidStateError when the session is being profiled
        already."""
        from ortrain.runtime.profiling import Profiling

        return Profiling(self._handle)

    @property
    def train_steps(self) -> int:
        """The number of train steps run, which seeds the random masks; set it when resuming a run so that its masks continue."""
        return self._handle.run_index

    @train_steps.setter
    def train_steps(self, steps: int) -> None:
        self._handle.run_index = steps

    def lazy_reset_grad(self) -> None:
        """Make the next train step overwrite the gradients instead of adding to them."""
        self.steps.reset()

    def _ready(self, run_options: RunOptions | None) -> None:
        if self._closed:
            raise UseAfterRelease("expected an open session, this one was closed")
        if self.state.nominal:
            raise InvalidStateError("expected parameter values, got a nominal state. Please load the model parameters first.")
        if run_options is not None and run_options.terminate:
            raise TerminatedError("expected to run, the call was terminated by its RunOptions")

    # ---- parameters

    @property
    def parameters(self) -> Parameters:
        """The parameters by name."""
        return Parameters(self.state)

    def parameters_size(self, trainable_only: bool = True) -> int:
        """The number of float32 elements of the flat parameter buffer."""
        return self.state.flat_size(trainable_only)

    def to_buffer(self, trainable_only: bool = False) -> np.ndarray:
        """Return a copy of the parameters, float32 [n], in the order of the training model's inputs."""
        return self.state.to_buffer(trainable_only)

    def from_buffer(self, buffer: np.ndarray, trainable_only: bool | None = None) -> None:
        """Copy a flat buffer, float32 [n], into the parameters.

        trainable_only: whether the buffer omits the frozen parameters; by default its size says so. Raises ParameterShapeError or ParameterTypeError."""
        self.state.from_buffer(buffer, trainable_only)

    # ---- names, files, closing

    @property
    def properties(self) -> dict[str, int | float | str]:
        """The user's properties, which are saved in checkpoints."""
        return self.state.properties

    def input_names(self, training: bool = True) -> list[str]:
        """Return the names of the user inputs of the training or the eval model. Raises InvalidStateError without an eval model."""
        return list(self._runner(training).inputs)

    def output_names(self, training: bool = True) -> list[str]:
        """Return the names of the user outputs of the training or the eval model. Raises InvalidStateError without an eval model."""
        return list(self._runner(training).outputs)

    def _runner(self, training: bool) -> Runner:
        runner = self._train_runner if training else self._eval_runner
        if runner is None:
            raise InvalidStateError("Evaluation session not initialized: expected an eval model, the session has none.")
        return runner

    def save_checkpoint(self, path: str | os.PathLike[str], include_optimizer_state: bool = False) -> None:
        """Write parameters, properties and, on request, the optimizer's state to a file, which is replaced atomically."""
        with self._lock:
            self.state.save(path, include_optimizer_state)

    def save_artifacts(self, directory: str | os.PathLike[str], prefix: str = "") -> None:
        """Write the training, eval and optimizer model and a checkpoint with optimizer state into an existing folder."""
        folder = Path(directory)
        models = {"training_model": self.training_model, "eval_model": self.eval_model, "optimizer_model": self.optimizer_model}
        for name, model in models.items():
            if model is not None:
                write_model(model, folder / f"{prefix}{name}.onnx")
        self.save_checkpoint(folder / f"{prefix}checkpoint", include_optimizer_state=True)

    def inference_model(self, output_names: Sequence[str] | None = None) -> Model:
        """Return the eval model cut to the named outputs, with the current parameters as initializers, in the element types of the forward model."""
        from ortrain.passes.inference_export import inference_model

        source = self._eval_or_fail()
        names = list(output_names) if output_names is not None else self._default_outputs()
        if self.state.nominal:
            raise InvalidStateError("expected parameter values, got a nominal state. Please load the model parameters first.")
        return inference_model(source, names, {name: widened(array) for name, array in parameter_arrays(self.state, source.graph.inputs).items()})

    def export(self, path: str | os.PathLike[str], output_names: Sequence[str] | None = None) -> None:
        """Write a model for inference: the eval model cut to the named outputs (by default those of predict), with the current weights."""
        if isinstance(output_names, str):
            raise ParameterTypeError(f"expected a list of output names, got the str {output_names!r}")
        with self._lock:
            write_model(self.inference_model(output_names), path)

    @property
    def is_open(self) -> bool:
        """Whether the session can be used."""
        return not self._closed

    def close(self) -> None:
        """Release threads and memory. Later steps raise InvalidStateError; parameters stay readable through the state."""
        with self._lock:
            self._closed = True
            if self.steps.pending is not None:
                self.state.forget_gradients_by(self)
            self.steps.invalidate()
            for runner in (self._train_runner, self._eval_runner, *self._predictors.values(),
                           *(runner for runner, _ in self._input_gradient_runners.values())):
                if runner is not None:
                    runner.forget()
            self._predictors.clear()
            self._handle.close()

    def _repr_html_(self) -> str:
        from ortrain.training.html import session_html

        return session_html(self)

    def __enter__(self) -> TrainingSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
