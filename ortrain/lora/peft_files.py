"""Files of adapters, with the names and layouts of the PEFT library: adapter_model.safetensors and adapter_config.json."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ortrain.errors import ArtifactNotFoundError, InvalidArgumentError, InvalidModelError, MissingPackageError
from ortrain.formats.atomic_files import replace_files
from ortrain.ir import Model
from ortrain.loading.loader import ModelSource, as_model
from ortrain.lora.adapters import Adapter, adaptable_layers, read_adapters
from ortrain.lora.full_weights import FullWeight, full_weights, read_full_weights, running_statistics, write_full_weights
from ortrain.lora.injection import add
from ortrain.passes.weight_layers import CONVOLUTION, EMBEDDING

WEIGHTS, CONFIGURATION = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."


def save(source: Any, folder: str | os.PathLike[str], name: str = "default") -> None:
    """Write one adapter, with the weights that were trained in full beside it, into a folder, which is created if necessary.

    source: a session, a trainer or a model. The weights in full are those of modules_to_save of lora.add, and all others that a session trains; running
    statistics of batch normalizations among them are written too.

    Raises InvalidArgumentError when there is no such adapter, MissingPackageError without the package safetensors (extra "lora")."""
    library = _safetensors()
    session = getattr(source, "session", source)
    model = session.inference_model() if hasattr(session, "inference_model") else as_model(session)
    found = [adapter for adapter in read_adapters(model) if adapter.name == name]
    if not found:
        raise InvalidArgumentError(f"expected a model with an adapter named {name!r}, got one with {sorted({a.name for a in read_adapters(model)}) or 'none'}")
    arrays: dict[str, np.ndarray] = {}
    for adapter in found:
        a, b = model.graph.initializers[adapter.a], model.graph.initializers[adapter.b]
        first, second = _keys(adapter.module, adapter.kind)
        arrays[first], arrays[second] = (a, b) if adapter.kind == CONVOLUTION else (np.ascontiguousarray(a.T), np.ascontiguousarray(b.T))
    full = _trained_in_full(model, session, name)
    for weight in full:
        array = model.graph.initializers[weight.name]
        arrays[f"{PREFIX}{weight.key}"] = np.ascontiguousarray(array.T) if weight.is_transposed else array
    configuration = {"peft_type": "LORA", "r": found[0].rank, "lora_alpha": found[0].alpha, "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": False,
                     "target_modules": sorted(adapter.module for adapter in found), "modules_to_save": sorted({weight.module for weight in full}) or None,
                     "base_model_name_or_path": None, "task_type": None, "inference_mode": True}
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    replace_files({target / WEIGHTS: [library.save(arrays, {"format": "np"})], target / CONFIGURATION: [json.dumps(configuration, indent=1).encode()]})


def _trained_in_full(model: Model, session: Any, name: str) -> list[FullWeight]:
    """Return the weights beside an adapter that the model's metadata list, or that a session trains."""
    known, listed = full_weights(model), read_full_weights(model)
    of_others = {weight for adapter, weights in listed.items() if adapter != name for weight in weights}
    wanted = set(listed.get(name, ()))
    if hasattr(session, "state"):
        wanted |= set(session.state.trainable) - of_others
    statistics = running_statistics(model)
    wanted |= {beside for weight in wanted for beside in statistics.get(weight, ())}
    return [weight for weight in known.values() if weight.name in wanted]


def load(model: ModelSource, folder: str | os.PathLike[str], name: str = "default") -> Model:
    """Return a copy of a model with an adapter that lora.save, or PEFT, wrote, and with the weights that were trained in full beside it.

    Modules are found by their whole path or by its end. Raises ArtifactNotFoundError when a file is missing, InvalidModelError when a file is damaged,
    InvalidArgumentError when a module is not in the model, a shape does not fit, or the adapter is of a kind that is not supported (DoRA, other ranks for
    some layers), MissingPackageError without the package safetensors (extra "lora")."""
    arrays, rank, alpha = _read(Path(folder))
    base = as_model(model)
    layers = {layer.module: layer for layer in adaptable_layers(base)}
    keys = {weight.key: weight for weight in full_weights(base).values()}
    wanted: dict[str, str] = {}
    full: dict[str, str] = {}
    for key in arrays:
        path, is_adapter, _ = key.removeprefix(PREFIX).partition(".lora_")
        if is_adapter:
            wanted[path] = _matching(path, layers)
        else:
            full[_matching(path.replace(".base_layer.", "."), keys)] = key
    if not wanted:
        raise InvalidModelError(f"expected weights of LoRA adapters in {str(Path(folder) / WEIGHTS)!r}, got {sorted(arrays)[:5] or 'none'}")
    adapted = add(base, [_literal(module) for module in dict.fromkeys(wanted.values())], rank, alpha=alpha, name=name)
    by_module = {adapter.module: adapter for adapter in read_adapters(adapted) if adapter.name == name}
    for path, module in wanted.items():
        _fill(adapted, by_module[module], path, arrays)
    beside = [weight for key, weight in keys.items() if key in full]
    for weight in beside:
        value = arrays[full[weight.key]]
        _set(adapted, weight.name, value.T if weight.is_transposed else value, full[weight.key])
    statistics = set().union(*running_statistics(adapted).values())
    write_full_weights(adapted, read_full_weights(adapted) | {name: [weight.name for weight in beside if weight.name not in statistics]})
    return adapted


def _fill(model: Model, adapter: Adapter, path: str, arrays: Mapping[str, np.ndarray]) -> None:
    for key, weight in zip(_keys(path, adapter.kind), (adapter.a, adapter.b), strict=True):
        if key not in arrays:
            raise InvalidModelError(f"expected a tensor {key!r} in the adapter, got none")
        _set(model, weight, arrays[key] if adapter.kind == CONVOLUTION else arrays[key].T, key)


def _set(model: Model, weight: str, value: np.ndarray, key: str) -> None:
    initial = model.graph.initializers[weight]
    if value.shape != initial.shape:
        raise InvalidArgumentError(f"expected shape {list(initial.shape)} for {weight!r}, got {list(value.shape)} from {key!r}")
    model.graph.initializers[weight] = np.ascontiguousarray(value, initial.dtype)


def _keys(module: str, kind: str) -> tuple[str, str]:
    """Return the names of A and B in PEFT's files."""
    if kind == EMBEDDING:
        return f"{PREFIX}{module}.lora_embedding_A", f"{PREFIX}{module}.lora_embedding_B"
    return f"{PREFIX}{module}.lora_A.weight", f"{PREFIX}{module}.lora_B.weight"


def _matching(path: str, modules: Mapping[str, Any]) -> str:
    if path in modules:
        return path
    found = [module for module in modules if module.endswith(f".{path}") or path.endswith(f".{module}")]
    if len(found) != 1:
        raise InvalidArgumentError(f"expected a place in the model for {path!r} of the adapter, got {found or 'none'}; there are {sorted(modules)[:20]}")
    return found[0]


def _literal(text: str) -> str:
    """Return a glob that fits a text alone."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in text)


def _read(folder: Path) -> tuple[dict[str, np.ndarray], int, float]:
    """Return (arrays, rank, alpha) of an adapter."""
    library = _safetensors()
    try:
        content, text = (folder / WEIGHTS).read_bytes(), (folder / CONFIGURATION).read_text(encoding="utf-8")
    except OSError as error:
        raise ArtifactNotFoundError(f"expected {WEIGHTS} and {CONFIGURATION} in {str(folder)!r}: {error}") from error
    try:
        arrays, configuration = library.load(content), json.loads(text)
        rank, alpha = configuration["r"], configuration["lora_alpha"]
    except Exception as error:
        raise InvalidModelError(f"expected an adapter in {str(folder)!r}, got files that cannot be read: {error}") from error
    unsupported = [option for option in ("use_dora", "rank_pattern", "alpha_pattern") if configuration.get(option)]
    if unsupported:
        raise InvalidArgumentError(f"expected an adapter with one rank and one alpha and without DoRA in {str(folder)!r}, got {', '.join(unsupported)}")
    return arrays, rank, alpha * math.sqrt(rank) if configuration.get("use_rslora") else alpha


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise MissingPackageError("expected the package safetensors for files of adapters: pip install 'ortrain[lora]'") from error
    return safetensors.numpy
