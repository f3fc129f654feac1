"""Parameter groups: parameters with a learning rate, a weight decay or a freeze of their own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ortrain.errors import ArgumentTypeError, InvalidArgumentError, InvalidCheckpointError, OrtrainError
from ortrain.ir.globs import expand, matching
from ortrain.ops.registry.optimizers import WEIGHT_DECAY
from ortrain.runtime.numbers import check_number
from ortrain.training.recipe import OptimizerRecipe

PROPERTY = "ortrain.parameter_groups"
"""The property of checkpoints that holds the groups, as JSON."""


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters that are updated with settings of their own.

    names: a name or a pattern in the style of fnmatch (*, ?, [...]; case-sensitive), or several. learning_rate_scale: factor of the session's learning rate.
    weight_decay: in place of the optimizer's; None keeps it. frozen: whether the parameters keep their values, as after session.freeze().

    Raises ArgumentTypeError or InvalidArgumentError for names that are no str or none at all, and for numbers that are negative or not finite."""

    names: str | Sequence[str]
    learning_rate_scale: float = 1.0
    weight_decay: float | None = None
    frozen: bool = False

    def __post_init__(self) -> None:
        names = (self.names,) if isinstance(self.names, str) else tuple(self.names)
        if not names or not all(isinstance(name, str) for name in names):
            raise ArgumentTypeError(f"expected a pattern or several as names of a parameter group, got {self.names!r}")
        if not isinstance(self.frozen, bool):
            raise ArgumentTypeError(f"expected a bool as frozen, got {self.frozen!r}")
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "learning_rate_scale", check_number(self.learning_rate_scale, "learning_rate_scale"))
        if self.weight_decay is not None:
            object.__setattr__(self, "weight_decay", check_number(self.weight_decay, WEIGHT_DECAY))


def no_decay_groups(parameters: Any, patterns: Sequence[str] = ("*bias", "*norm*", "*Norm*")) -> list[ParameterGroup]:
    """Return the groups that exempt parameters from weight decay, biases and normalization layers by default; [] if no parameter matches.

    parameters: a session, or names. patterns: of the exempted parameters; those that match nothing are ignored."""
    names = list(getattr(parameters, "state", None).trainable) if hasattr(parameters, "state") else list(parameters)  # type: ignore[union-attr]
    exempt = tuple(pattern for pattern in patterns if matching(pattern, names))
    return [ParameterGroup(exempt, weight_decay=0.0)] if exempt else []


def discriminative_groups(session: Any, factor: float = 0.3, groups: int = 3) -> list[ParameterGroup]:
    """Return groups with learning rates that fall from the output to the input: the last one has the session's, each one before `factor` times the next's
    (discriminative fine-tuning, J. Howard and S. Ruder, 2018).

    session: whose trainable parameters are divided, in the order in which the training model uses them, into `groups` groups of about as many tensors.
    factor: above 0. Raises InvalidArgumentError for a factor or a number of groups that is out of range."""
    if check_number(factor, "factor") == 0:
        raise InvalidArgumentError("expected a factor above 0, got 0")
    if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1:
        raise InvalidArgumentError(f"expected at least 1 as the number of groups, got {groups!r}")
    trainable = session.state.trainable
    used = dict.fromkeys(name for node in session.training_model.graph.nodes for name in node.inputs if name in trainable)
    names = list(used)
    bounds = [round(len(names) * k / groups) for k in range(groups + 1)]
    parts = [names[start:end] for start, end in itertools.pairwise(bounds)]
    return [ParameterGroup(part, learning_rate_scale=factor ** (groups - 1 - k)) for k, part in enumerate(parts) if part]


def members(groups: Sequence[ParameterGroup], names: Iterable[str]) -> list[list[str]]:
    """Return the parameters of each group; one that several groups match belongs to the first of them. Raises ParameterNotFoundError for a pattern without a
    match."""
    taken: set[str] = set()
    found = []
    for group in groups:
        mine = [name for name in expand(group.names, names, "a parameter group") if name not in taken]
        taken.update(mine)
        found.append(mine)
    return found


def to_json(groups: Sequence[ParameterGroup]) -> str:
    """Return groups as the value of the checkpoint's property."""
    return json.dumps([asdict(group) for group in groups])


def from_json(text: object) -> list[ParameterGroup]:
    """Return the groups of a checkpoint's property. Raises InvalidCheckpointError when it holds no groups."""
    try:
        return [ParameterGroup(**group) for group in json.loads(str(text))]
    except (ValueError, TypeError, OrtrainError) as error:
        raise InvalidCheckpointError(f"expected parameter groups in the property {PROPERTY!r}, got {str(text)[:80]!r}: {error}") from None


class UpdateSettings(NamedTuple):
    """How a range of parameters is updated."""

    row: int
    """Of the progress, which has one row per learning-rate scale."""
    floats: tuple[float, ...]
    """Hyperparameters in the order of the algorithm's kernel."""


class GroupSettings:
    """The settings of every parameter under a recipe and groups.

    scales: the learning-rate scales, 1 first. frozen: the parameters that the groups freeze."""

    def __init__(self, recipe: OptimizerRecipe, groups: Sequence[ParameterGroup] = (), names: Iterable[str] = ()) -> None:
        """Resolve the groups. Raises ParameterNotFoundError for patterns without a match, InvalidArgumentError for a weight decay that the algorithm lacks."""
        self.default = UpdateSettings(0, recipe.floats)
        self.groups = list(groups)
        self.scales = tuple(dict.fromkeys((1.0, *(group.learning_rate_scale for group in groups))))
        self.frozen: set[str] = set()
        self._own: dict[str, UpdateSettings] = {}
        for group, mine in zip(groups, members(groups, list(names)), strict=True):
            settings = UpdateSettings(self.scales.index(group.learning_rate_scale), _with_decay(recipe, group.weight_decay))
            self._own |= dict.fromkeys(mine, settings)
            if group.frozen:
                self.frozen.update(mine)

    def of(self, name: str) -> UpdateSettings:
        """Return the settings of a parameter."""
        return self._own.get(name, self.default)

    def partition(self, names: Iterable[str]) -> dict[UpdateSettings, set[str]]:
        """Divide parameters by their settings."""
        parts: dict[UpdateSettings, set[str]] = {}
        for name in names:
            parts.setdefault(self.of(name), set()).add(name)
        return parts


def _with_decay(recipe: OptimizerRecipe, decay: float | None) -> tuple[float, ...]:
    if decay is None:
        return recipe.floats
    names = list(recipe.algorithm.floats)
    if WEIGHT_DECAY not in names:
        raise InvalidArgumentError(f"expected parameter groups without weight_decay for {recipe.algorithm.operator}, which has none, got {decay}: "
                                   "optim.SGD(momentum=..., weight_decay=...) has it")
    index = names.index(WEIGHT_DECAY)
    return (*recipe.floats[:index], decay, *recipe.floats[index + 1 :])
