"""Compiles ortrain to WebAssembly in the environment of tests.browser.environment, and puts a site with the example together.

    python -m tests.browser.build FOLDER"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from ortrain import set_seed
from tests.arm.build import ROOT, copy_sources
from tests.browser.environment import CONFIGURATION, PLATFORM, make

EXAMPLE = ROOT / "examples" / "browser"
COMPILER = ["clang-19", "--target=wasm32-unknown-emscripten", "-fPIC"]
LINKER = ["wasm-ld-19", "-shared", "--experimental-pic", "--unresolved-symbols=import-dynamic", "--export-dynamic", "--strip-all"]
"""Makes a side module: the runtime has the C library, and finds the functions that a module takes from it by name."""


def build_wheel(folder: Path) -> Path:
    """Compile ortrain and return the wheel."""
    sources, wheels = folder / "ortrain", folder / "wheels"
    copy_sources(sources)
    shutil.copy2(ROOT / "LICENSE", sources)
    shutil.rmtree(wheels, ignore_errors=True)
    includes = [f"-I{folder / name}" for name in ("python", "numpy/numpy/_core/include")]
    environment = os.environ | {
        "_PYTHON_SYSCONFIGDATA_NAME": CONFIGURATION, "_PYTHON_HOST_PLATFORM": "emscripten-wasm32", "PYTHONPATH": str(folder / "configuration"),
        "CC": " ".join([*COMPILER, f"--sysroot={folder / 'sysroot'}", *includes]), "LDSHARED": " ".join(LINKER)}
    subprocess.run([folder / "venv" / "bin" / "python", "setup.py", "-q", "bdist_wheel", f"--plat-name={PLATFORM}", f"--dist-dir={wheels}"],
                   cwd=sources, env=environment, check=True)
    return next(wheels.glob("*.whl"))


def write_model(folder: Path) -> None:
    """Write the artifacts of the digits model and the digits, as pixels from 0 to 16."""
    sys.path.insert(0, str(ROOT / "examples" / "digits"))
    from digits_data import small_digits
    from train_digits import make_artifacts

    digits = small_digits(seed=0)
    folder.mkdir()
    set_seed(0)
    make_artifacts(digits.train_images.shape[-1], 0, folder)
    (folder / "forward.onnx").unlink()
    np.savez_compressed(folder / "digits.npz", train_images=(digits.train_images * 16).astype(np.uint8), train_labels=digits.train_labels.astype(np.uint8),
                        test_images=(digits.test_images * 16).astype(np.uint8), test_labels=digits.test_labels.astype(np.uint8))


def build_site(folder: Path) -> Path:
    """Build the site in `folder`: the example, the runtime, the wheels, the model and the digits."""
    folder = make(folder)
    site = folder / "site"
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(EXAMPLE, site)
    wheels = [next((folder / "flatbuffers").glob("*.whl")), build_wheel(folder)]
    for wheel in wheels:
        shutil.copy2(wheel, site)
    shutil.copytree(folder / "pyodide", site / "pyodide")
    write_model(site / "model")
    (site / "site.json").write_text(json.dumps({"packages": ["numpy", *(wheel.name for wheel in wheels)],
                                                "files": sorted(path.name for path in (site / "model").iterdir())}))
    return site


if __name__ == "__main__":
    print(build_site(Path(sys.argv[1])))
