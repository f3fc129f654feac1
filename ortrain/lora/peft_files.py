"""Files of adapters, with the names and layouts of the PEFT library: adapter_model.safetensors and adapter_config.json."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ortrain.errors import ArtifactNotFoundError, InvalidArgumentError, InvalidModelError
from ortrain.formats.atomic_files import replace_files
from ortrain.ir import Model
from ortrain.loading.loader import ModelSource, as_model
from ortrain.lora.adapters import Adapter, adaptable_layers, read_adapters
from ortrain.lora.injection import add
from ortrain.passes.weight_layers import CONVOLUTION, EMBEDDING

WEIGHTS, CONFIGURATION = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."


def save(source: Any, folder: str | os.PathLike[str], name: str = "default") -> None:
    """Write one adapter of a session, or of a model, into a folder, which is created if necessary.

    Raises InvalidArgumentError when there is no such adapter, ImportError without the package safetensors (extra "lora")."""
    model = source.inference_model() if hasattr(source, "inference_model") else as_model(source)
    found = [adapter for adapter in read_adapters(model) if adapter.name == name]
    if not found:
        raise InvalidArgumentError(f"expected a model with an adapter named {name!r}, got one with {sorted({a.name for a in read_adapters(model)}) or 'none'}")
    arrays: dict[str, np.ndarray] = {}
    for adapter in found:
        a, b = model.graph.initializers[adapter.a], model.graph.initializers[adapter.b]
        first, second = _keys(adapter.module, adapter.kind)
        arrays[first], arrays[second] = (a, b) if adapter.kind == CONVOLUTION else (np.ascontiguousarray(a.T), np.ascontiguousarray(b.T))
    configuration = {"peft_type": "LORA", "r": found[0].rank, "lora_alpha": found[0].alpha, "lora_dropout": 0.0, "bias": "none", "fan_in_fan_out": False,
                     "target_modules": sorted(adapter.module for adapter in found), "base_model_name_or_path": None, "task_type": None,
                     "inference_mode": True}
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    replace_files({target / WEIGHTS: [_safetensors().save(arrays, {"format": "np"})], target / CONFIGURATION: [json.dumps(configuration, indent=1).encode()]})


def load(model: ModelSource, folder: str | os.PathLike[str], name: str = "default") -> Model:
    """Return a copy of a model with an adapter that lora.save, or PEFT, wrote.

    Modules are found by their whole path or by its end. Raises ArtifactNotFoundError when a file is missing, InvalidModelError when a file is damaged,
    InvalidArgumentError when a module is not in the model or a shape does not fit, ImportError without safetensors."""
    arrays, configuration = _read(Path(folder))
    layers = {layer.module: layer for layer in adaptable_layers(as_model(model))}
    wanted: dict[str, str] = {}
    for key in arrays:
        path, found, _ = key.removeprefix(PREFIX).partition(".lora_")
        if not found:
            raise InvalidModelError(f"expected weights of LoRA adapters alone in {str(Path(folder) / WEIGHTS)!r}, got {key!r}")
        wanted[path] = _matching(path, layers)
    adapted = add(model, [_literal(module) for module in dict.fromkeys(wanted.values())], configuration["r"], alpha=configuration["lora_alpha"], name=name)
    by_module = {adapter.module: adapter for adapter in read_adapters(adapted) if adapter.name == name}
    for path, module in wanted.items():
        _fill(adapted, by_module[module], path, arrays)
    return adapted


def _fill(model: Model, adapter: Adapter, path: str, arrays: Mapping[str, np.ndarray]) -> None:
    for key, weight in zip(_keys(path, adapter.kind), (adapter.a, adapter.b), strict=True):
        if key not in arrays:
            raise InvalidModelError(f"expected a tensor {key!r} in the adapter, got none")
        value = arrays[key] if adapter.kind == CONVOLUTION else arrays[key].T
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
        raise InvalidArgumentError(f"expected a layer of the model for the adapter's module {path!r}, got {found or 'none'}; modules are "
                                   f"{sorted(modules)[:20]}")
    return found[0]


def _literal(text: str) -> str:
    """Return a glob that fits a text alone."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in text)


def _read(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    try:
        content, text = (folder / WEIGHTS).read_bytes(), (folder / CONFIGURATION).read_text(encoding="utf-8")
    except OSError as error:
        raise ArtifactNotFoundError(f"expected {WEIGHTS} and {CONFIGURATION} in {str(folder)!r}: {error}") from error
    library = _safetensors()
    try:
        arrays, configuration = library.load(content), json.loads(text)
        rank, alpha = configuration["r"], configuration["lora_alpha"]
    except Exception as error:
        raise InvalidModelError(f"expected an adapter in {str(folder)!r}, got files that cannot be read: {error}") from error
    return arrays, {"r": rank, "lora_alpha": alpha}


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ImportError('expected the package safetensors for files of adapters: pip install "ortrain[lora]"') from error
    return safetensors.numpy
