"""Preprocessing: how a data file becomes the inputs of a model. It is fitted to training data, stored with the run, and applied again later."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from ortrain.data.augmentation import Augment
from ortrain.errors import InvalidArgumentError
from ortrain.ir import TensorType
from ortrain.trainer.construction import InputRoles
from ortrain.training.session import TrainingSession


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """The inputs that data are made for. forward: those of the forward model. targets: the others. types: their element types and shapes by name."""

    forward: list[str]
    targets: list[str]
    types: dict[str, TensorType]

    @classmethod
    def of(cls, session: TrainingSession, roles: InputRoles) -> ModelInputs:
        """Return the inputs of a session."""
        types = session.training_model.graph.types
        return cls(roles.forward, roles.targets, {name: types[name] for name in (*roles.forward, *roles.targets) if name in types})

    def dtypes(self) -> dict[str, str]:
        """Return input -> element type."""
        return {name: kind.dtype for name, kind in self.types.items()}


@dataclass(frozen=True, slots=True)
class DataOptions:
    """How a user wants data to be read; None leaves the choice to the data.

    target: the target's array or column. features: the columns of a table to be used. categorical: its columns of categories; None takes those of text.
    missing: what replaces missing numbers: "mean", "median", "zero", or "refuse". standardize: numbers get mean 0 and standard deviation 1.
    image_size: (height, width). resize: "squash", "crop" or "pad". mean, std: of the pixels, which are between 0 and 1. augment: random changes in training."""

    target: str | None = None
    features: Sequence[str] | None = None
    categorical: Sequence[str] | None = None
    missing: str = "mean"
    standardize: bool = True
    image_size: tuple[int, int] | None = None
    resize: str = "squash"
    mean: Sequence[float] = (0.0,)
    std: Sequence[float] = (1.0,)
    augment: Augment | None = None


class Preprocessing(ABC):
    """How files of one kind become the inputs of a model."""

    kind: ClassVar[str]
    classes: list[Any] | None = None
    """The classes of the target in the order of their numbers; None for regression, and where the data do not name them."""

    @abstractmethod
    def labelled(self, path: str | os.PathLike[str], names: Sequence[str], augment: bool = False) -> tuple[Any, Any]:
        """Return (data, targets) for as_loader, with all inputs `names`, targets last. augment: with random changes."""

    @abstractmethod
    def unlabelled(self, path: str | os.PathLike[str], names: Sequence[str]) -> Any:
        """Return data for as_loader with the inputs `names` of the forward model; targets that the file has are not read."""

    def samples(self, path: str | os.PathLike[str]) -> tuple[str, list[str]] | None:
        """Return (what samples are called by, the name of each sample), None where they have numbers only."""
        return None

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return what restore_preprocessing of ortrain.runs.loaders needs; JSON can hold it."""

    def check_classes(self, outputs: int | None) -> None:
        """Raise InvalidArgumentError when the data have more classes than the model has outputs."""
        if self.classes is not None and outputs is not None and outputs < len(self.classes):
            names = ", ".join(map(str, self.classes[:10])) + (", ..." if len(self.classes) > 10 else "")
            raise InvalidArgumentError(f"expected a model with at least {len(self.classes)} outputs for the classes {names}, got {outputs}: "
                                       f"--num-classes {len(self.classes)} gives it a new last layer")


def augment_from(words: Sequence[str]) -> Augment:
    """Return the augmentation for words such as horizontal-flip, random-crop=4, random-crop=0.6:1 and brightness=0.2.

    Raises InvalidArgumentError for a word that is none of these."""
    known = [name.replace("_", "-") for name in Augment.__dataclass_fields__]
    settings: dict[str, Any] = {}
    for word in words:
        name, separator, text = word.partition("=")
        if name not in known or bool(separator) == name.endswith("flip"):
            raise InvalidArgumentError("expected horizontal-flip, vertical-flip, random-crop=PIXELS or LOW:HIGH, brightness=SHARE or contrast=SHARE, got "
                                       f"{word!r}")
        try:
            settings[name.replace("-", "_")] = True if not separator else _amount(name, text)
        except ValueError as error:
            raise InvalidArgumentError(f"expected a number after {name}=, got {text!r}") from error
    return Augment(**settings)


def _amount(name: str, text: str) -> int | float | tuple[float, ...]:
    if name != "random-crop":
        return float(text)
    return tuple(map(float, text.split(":"))) if ":" in text else int(text)


def augment_to_dict(augment: Augment | None) -> dict[str, Any] | None:
    """Return an augmentation as JSON can hold it."""
    return None if augment is None else asdict(augment)
