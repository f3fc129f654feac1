"""Session and run options, with the names of onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ortrain.errors import InvalidArgumentError
from ortrain.runtime.differential_privacy import DifferentialPrivacy
from ortrain.runtime.renamed_options import Renamed, accepts_former_names, warn

SWITCHES = "enable_winograd", "enable_amx", "enable_elementwise_fusion", "optimizer_in_backward"
OWN_ENTRIES = tuple(f"ortrain.{name}" for name in (*SWITCHES, "precision", "float32_nodes", "rematerialization", "parameter_dtype"))
"""Configuration entries that set ortrain's own options through APIs whose option classes have no such fields. A switch is "0" or "1"."""
FORMER_NAMES = {
    "direct_convolution": Renamed("enable_winograd", inverted=True),
    "vector_products": Renamed("enable_amx", inverted=True),
    "recomputation": Renamed("rematerialization"),
}
PRECISIONS = "float32", "bfloat16", "auto"
PARAMETER_DTYPES = "float32", "bfloat16"
MAX_THREADS = 8
"""More threads do not make models of the sizes that are trained on CPUs faster."""


def allowed_processors() -> set[int]:
    """Return the numbers of the processors that this process may use."""
    try:
        return os.sched_getaffinity(0)
    except AttributeError:                                  # macOS
        return set(range(os.cpu_count() or 1))


def physical_cores(processors: Iterable[int] | None = None) -> int:
    """Return the number of processors, by default those that this process may use, counting two that share a core (hyper-threading) once; at least 1."""
    cores = set()
    for cpu in allowed_processors() if processors is None else processors:
        try:
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") as file:
                cores.add(file.read().strip())
        except OSError:
            cores.add(str(cpu))
    return max(1, len(cores))


def check_share(rematerialization: float) -> float:
    """Return a share of a step's time. Raises InvalidArgumentError when it is not between 0 and 1."""
    if not (isinstance(rematerialization, int | float) and 0 <= rematerialization <= 1):
        raise InvalidArgumentError(f"expected a share of the step's time from 0 to 1 as rematerialization, got {rematerialization!r}")
    return rematerialization


def check_precision(precision: str) -> str:
    """Return the name of a precision. Raises InvalidArgumentError when it is not one of PRECISIONS."""
    if precision not in PRECISIONS:
        raise InvalidArgumentError(f"expected one of {', '.join(PRECISIONS)} as precision, got {precision!r}")
    return precision


def check_parameter_dtype(dtype: str) -> str:
    """Return the name of a dtype of parameters. Raises InvalidArgumentError when it is not one of PARAMETER_DTYPES."""
    if dtype not in PARAMETER_DTYPES:
        raise InvalidArgumentError(f"expected one of {', '.join(PARAMETER_DTYPES)} as parameter_dtype, got {dtype!r}")
    return dtype


def check_patterns(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return patterns of names of nodes or operators. Raises InvalidArgumentError for one text in place of several, and for what is no text."""
    found = tuple(patterns) if isinstance(patterns, Iterable) and not isinstance(patterns, str) else ("",)
    if not all(isinstance(pattern, str) and pattern for pattern in found):
        raise InvalidArgumentError(f"expected a sequence of names or patterns as float32_nodes, got {patterns!r}")
    return found


@accepts_former_names(FORMER_NAMES)
@dataclass
class SessionOptions:
    """Options of a session.

    intra_op_num_threads: threads of a step; 0 means the physical cores, at most eight. Every number of threads gives the same bits.
    enable_winograd: compute 3 x 3 convolutions and other kernels 3, 5 or 7 wide by Winograd's algorithms. They are up to three times as fast as direct sums;
    their rounding errors are 2 to 4 times theirs, and 5 to 8 times in the gradient of the data.
    enable_amx: compute large matrix multiplications on AMX tiles where the processor has them. In float32 they are up to 1.9 times as fast, and each number is
    split into three bfloat16 parts that together have all its bits, so results are at least as accurate. In bfloat16 each number is one part, and what is too
    small for tiles stays in float32.
    precision: "float32", or "bfloat16" for matrix multiplications, those of attention, of convolutions and of recurrent layers included, whose operands are
    rounded to bfloat16 (8 significant bits) and whose products are added in float32. Large activations that only the backward pass still reads are kept in
    bfloat16 where that lowers the peak of the memory. All else, weights and optimizers included, stays float32. Products are up to 1.9 times as fast on a
    Zen 4 and 4 times on AMX tiles. Those of ARM processors with BF16 were run in an emulator only; sums round in another way there. Elsewhere, operands are
    rounded in the same way, but products are slower than in float32. "auto" is "bfloat16" where the processor multiplies such numbers faster, else
    "float32".
    float32_nodes: exceptions from precision: names of nodes of the model, or patterns of them such as "/decoder/*", and names of operators such as "Gemm".
    Their matrix multiplications and those of their gradients stay in float32. A node into which several were fused has the name of one of them, as profiles
    show it.
    parameter_dtype: "float32", or "bfloat16" to keep trainable parameters of float32 and the optimizer's moments in bfloat16 alone, in half the memory. Updates
    are computed in float32 and rounded stochastically, up or down at random, such that they are right on average. Products read float32 copies, which are made
    for a layer at a time. For optimizers that update each element on its own: SGD, Adam, AdamW, Lion, RMSprop and Adagrad.
    enable_elementwise_fusion: run chains of elementwise operators, and reductions over the last axes between them, block by block, so that the values between
    them stay in the first cache. The bits stay the same; switch it off to see every operator in a profile.
    optimizer_in_backward: update each parameter within the train step, as soon as its gradient is complete, so that the gradients never exist all at
    once. The optimizer step then only ends the train step: each train step must be followed by an optimizer step and a reset of the gradients, and gradients
    cannot be read, accumulated or clipped. Without this option gradients are deferred: they stay where activations were until an optimizer step uses
    them, or until they are read or added to; the option takes slightly less memory than that.
    rematerialization: the share of a step's estimated time, from 0 to 1, that may go to computing activations a second time right before the backward pass
    reads them, instead of keeping them (also known as activation checkpointing). The bits stay the same. The default of 7 % covers normalizations,
    activation functions and the cheapest convolutions and matrix multiplications; larger shares cover more of these, in the order of memory freed per time.
    0 keeps every activation.
    differential_privacy: an ortrain.DifferentialPrivacy, by which train steps clip the gradient of each sample and optimizer steps add noise; None for neither.

    The remaining fields exist for scripts written for onnxruntime-training and have no effect here unless stated otherwise."""

    intra_op_num_threads: int = 0
    enable_winograd: bool = True
    enable_amx: bool = True
    precision: str = "float32"
    float32_nodes: Sequence[str] = ()
    parameter_dtype: str = "float32"
    enable_elementwise_fusion: bool = True
    optimizer_in_backward: bool = False
    rematerialization: float = 0.07
    differential_privacy: DifferentialPrivacy | None = None
    inter_op_num_threads: int = 0
    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    graph_optimization_level: object = None
    execution_mode: object = None
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    optimized_model_filepath: str = ""
    profile_file_prefix: str = "onnxruntime_profile_"
    use_deterministic_compute: bool = True
    _entries: dict[str, str] = field(default_factory=dict)

    def register_custom_ops_library(self, library_path: str | os.PathLike[str]) -> None:
        """Run a Python file that calls ortrain.register_operator. Raises ArtifactNotFoundError, or InvalidArgumentError for a shared library."""
        from ortrain.ops.custom import load_operators  # imported here because options are imported with the API, which operators would make heavy

        load_operators(library_path)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set a configuration entry. Entries such as "ortrain.optimizer_in_backward" set the option: a switch to "0" or "1", rematerialization to a
        number, precision and parameter_dtype to their names, float32_nodes to patterns between commas.

        Raises InvalidArgumentError for the one entry that onnxruntime refuses in training, for an unknown ortrain option, for an invalid value, and
        for arguments that are not text."""
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidArgumentError(f"expected text as key and value of a configuration entry, got {key!r} and {value!r}")
        if key == "session.disable_prepacking" and value == "0":
            raise InvalidArgumentError("Prepacking is not supported for training scenarios.")
        if key.startswith("ortrain."):
            self._set_option(key, value)
        self._entries[key] = value

    def _set_option(self, key: str, value: str) -> None:
        former = key.removeprefix("ortrain.")
        renamed = FORMER_NAMES.get(former, Renamed(former))
        name = renamed.to
        if f"ortrain.{name}" not in OWN_ENTRIES:
            raise InvalidArgumentError(f"expected one of {', '.join(OWN_ENTRIES)}, got the configuration entry {key!r}")
        if former in FORMER_NAMES:
            warn(former, renamed, 4)
        if name in SWITCHES:
            if value not in ("0", "1"):
                raise InvalidArgumentError(f"expected 0 or 1 as {key}, got {value!r}")
            setattr(self, name, renamed.convert(value == "1"))
            return
        if name == "precision":
            self.precision = check_precision(value)
            return
        if name == "parameter_dtype":
            self.parameter_dtype = check_parameter_dtype(value)
            return
        if name == "float32_nodes":
            self.float32_nodes = check_patterns(pattern.strip() for pattern in value.split(",") if pattern.strip())
            return
        try:
            share = float(value)
        except ValueError as error:
            raise InvalidArgumentError(f"expected a number as {key}, got {value!r}") from error
        self.rematerialization = check_share(share)

    def get_session_config_entry(self, key: str) -> str:
        """Return the value of a configuration entry. Raises InvalidArgumentError when it was never set."""
        if key not in self._entries:
            raise InvalidArgumentError(f"expected a configuration entry that was set, got {key!r}")
        return self._entries[key]

    def threads(self) -> int:
        """The number of threads of a session with these options. Raises InvalidArgumentError for a negative one."""
        if self.intra_op_num_threads < 0:
            raise InvalidArgumentError(f"expected intra_op_num_threads >= 0, got {self.intra_op_num_threads}")
        return self.intra_op_num_threads or min(MAX_THREADS, physical_cores())


class RunOptions:
    """Options of one call.

    terminate: set it, from any thread, and the call stops before its next kernel with TerminatedError; after a train step that was
    stopped, the gradients must be reset. The remaining attributes exist for scripts written for onnxruntime-training and have no effect here."""

    def __init__(self) -> None:
        self._terminate = np.zeros(1, np.uint8)
        self.log_severity_level = 2
        self.log_verbosity_level = 0
        self.logid = ""
        self.only_execute_path_to_fetches = False

    @property
    def terminate(self) -> bool:
        """Whether calls with these options stop."""
        return bool(self._terminate[0])

    @terminate.setter
    def terminate(self, value: bool) -> None:
        self._terminate[0] = bool(value)

    @property
    def terminate_flag(self) -> np.ndarray:
        """The byte that running programs check, uint8 [1]."""
        return self._terminate
