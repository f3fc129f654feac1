"""Builds the Cython core: every kernel module once per instruction set, all other modules once.

Environment variables:

    ORTRAIN_ISA=avx2,...          build only these instruction sets (default: all; baseline runs on every processor)
    ORTRAIN_ONLY=conv,engine      build only the modules with these names; native is the library libonnxruntime
    ORTRAIN_DEBUG=1               check the bounds of array accesses
    ORTRAIN_SANITIZE=address      compile with the address and undefined-behavior sanitizers; thread: with the thread sanitizer
    ORTRAIN_ANNOTATE=1            write Cython's annotated HTML
    ORTRAIN_BUILD_JOBS=N          compile N files at a time (default: the number of processors)
"""

import os
import platform
import sysconfig
import tomllib
from collections.abc import Sequence
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

CORE = Path("ortrain") / "_core"
KERNELS = CORE / "kernels"
NATIVE = Path("ortrain") / "_native"
GENERATED = Path("build") / "instruction_sets"

TARGET = sysconfig.get_platform()                             # what is built for, which is not this machine when cross-compiling
MACOS, WINDOWS = TARGET.startswith("macosx"), TARGET.startswith("win")
WASM = TARGET.endswith("wasm32")                             # a Python in a browser: one thread, and no programs that load a library
HAS_LIBRARY = not WINDOWS and not WASM
GCC = "gcc" in (os.environ.get("CC") or sysconfig.get_config_var("CC") or "")
# No -ffast-math, which changes the floating-point mode of the whole process. A fixed -ffp-contract gives the same bits in all builds of an instruction set.
# Nothing unwinds through C that throws nothing: the tables for it, which Windows demands, would be 4 % of the kernels and more of other modules.
BASE_FLAGS = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fvisibility=hidden", "-g0",
              *([] if WINDOWS else ["-fno-asynchronous-unwind-tables"])]
# GCC writes out what remains of a loop over vectors for up to 16 elements, and a loop once for either value of a condition in it, which is a tenth of the
# bytes. Convolutions are slower without the one, and kernels such as ArgMax and Mod without the other. Reductions of rows write out loops over 8 lanes: with 4,
# those of AVX2 take 1.4 to 1.9 times as long. What this costs was measured on x86-64 only.
SHORT_REMAINDERS, REMAINDERS_OF_8, ONE_VERSION = (["--param=max-completely-peel-times=4"], ["--param=max-completely-peel-times=8"],
                                                  ["-fno-unswitch-loops"])
# Jump threading multiplies x sigmoid(x) out for the limits of sigmoid as well, and selects afterwards: with subnormal numbers, twice the time.
NO_JUMP_THREADING = ["-fno-thread-jumps"]
# Rows of planes are copied by loops of a few vectors, which calls of memcpy would double.
OWN_COPIES = ["-fno-tree-loop-distribute-patterns"]
# A short loop is slower where it crosses a line of 64 bytes of code: on Zen 3, with AVX2, products with a column took 1.5 times as long as sums with one,
# whose loop has the same instructions. GCC aligns loops to 16 bytes, and only those that it expects to run often in their function, which the least of them
# in a function of many cases are not. Other sets would grow by 0.1 MB each, and were not measured; the inner loops of tiles are longer than a line. Jumps
# need not be aligned, which is 1 % of the bytes: steps of networks take as long.
ALIGNED_LOOPS, UNALIGNED_JUMPS = ["-falign-loops=64", "--param=align-threshold=65536"], ["-fno-align-jumps"]
KERNELS_OF_TILES = {"channels_last", "gemm", "gemm_bfloat16", "gemm_float64"}
FLAGS_OF_MODULES = {"channels_last": ONE_VERSION, "elementwise": [*SHORT_REMAINDERS, *NO_JUMP_THREADING], "planes": [*SHORT_REMAINDERS, *OWN_COPIES],
                    "reduce": [*REMAINDERS_OF_8, *ONE_VERSION]}
# Modules whose loops are written out in the sources gain nothing by -O3, and neither do most on processors without AVX2: vectorization by -O2 takes 0.6 of
# 12.4 MB. Steps of eight networks take 1 % more on such processors, and those of five as long on others; losses, pools, optimizers and GridSample stay within
# 5 %, the noise of their measurement. A U-Net's convolutions would take 7 % longer, ArgMax with AVX2 and AVX-512 40 %, and float32 products of 16 rows 10 %:
# they keep -O3.
COMPACT_KERNEL_FLAGS, COMPACT_KERNELS = (["-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic"],
                                         {"gemm_bfloat16", "gemm_float64", "loss", "pool", "recurrent", "roi_pooling", "sampling", "training"})
# Modules without loops over elements, for which -O3 lengthens code: those that run in every step, and those that are compiled for size, most of which plan.
# Plans take as long to make, and so do steps.
STEP_FLAGS, COMPACT_FLAGS = ["-O2"], ["-Os"]
COMPACT_MODULES = {"arrays", "bridge", "builtin_kernels", "cpu", "engine", "loop", "memory_planner", "optimizer_update", "program_builder", "program_layout",
                   "program_template", "session_lock", "symbolic", "values"}
# Wheels have neither symbols, which disassemblies read in a checkout, nor padding between the sections of a file: 1.7 of 12 MB. A part of the padding would
# make tables read-only after the modules are loaded, but not the addresses of functions, which are bound when they are called first.
WHEEL_LINK_FLAGS = {"linux": ["-Wl,-s", "-Wl,-z,noseparate-code", "-Wl,-z,norelro", "-Wl,--hash-style=gnu", "-Wl,--build-id=none"], "macosx": ["-Wl,-x"],
                    "win": ["-Wl,-s"]}.get(TARGET.partition("-")[0], [])
X86_SETS = {
    "baseline": ["-march=x86-64"],
    "avx2": ["-march=x86-64-v3"],
    "avx512": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
}
ARM_SETS = {
    "neon": ["-march=armv8-a"],
}
WASM_SETS = {
    "simd128": ["-msimd128"],
}
# Flags of a second build of gemm_bfloat16, for processors of a set that multiply bfloat16 numbers.
NATIVE_BFLOAT16 = {"avx512": ["-mavx512bf16"], "neon": ["-march=armv8.2-a+bf16"]}
SANITIZERS = {"address": "address,undefined", "thread": "thread"}
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "embedsignature": True,
    "auto_pickle": False,                           # what compiled classes hold are addresses
    "freethreading_compatible": True,               # sessions take a lock (_core/session_lock.pyx) and share nothing else that changes
}


def enabled(switch: str) -> bool:
    return os.environ.get(switch, "0") not in ("", "0")


def target_sets() -> dict[str, list[str]]:
    """Return instruction set -> compiler flags for the processors to build for, which are not this one's when cross-compiling."""
    if WASM:
        return WASM_SETS
    # a Python of macOS for both processors builds for the one that it runs on
    target = (platform.machine() if TARGET.endswith("universal2") else TARGET).lower()
    if target.endswith(("x86_64", "amd64")):
        return X86_SETS
    return ARM_SETS if target.endswith(("aarch64", "arm64")) else {"baseline": []}


def instruction_sets() -> dict[str, list[str]]:
    """Return instruction set -> compiler flags for the sets to build."""
    sets = target_sets()
    chosen = os.environ.get("ORTRAIN_ISA")
    if not chosen:
        return sets
    unknown = set(chosen.split(",")) - set(sets)
    if unknown:
        raise SystemExit(f"expected ORTRAIN_ISA to name instruction sets among {sorted(sets)}, got {sorted(unknown)}")
    return {name: sets[name] for name in chosen.split(",")}


def flags(own: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """Return (compile flags, link flags) of an extension. own: flags of this kind of extensions, which builds with sanitizers leave out."""
    if chosen := os.environ.get("ORTRAIN_SANITIZE"):
        if chosen not in SANITIZERS:
            raise SystemExit(f"expected ORTRAIN_SANITIZE to be one of {sorted(SANITIZERS)}, got {chosen!r}")
        sanitize = [f"-fsanitize={SANITIZERS[chosen]}", "-fno-omit-frame-pointer"]
        return ["-O1", "-g", *sanitize], sanitize
    return [*BASE_FLAGS, *own], [] if WINDOWS or WASM else ["-pthread"]


def engine_flags(name: str) -> list[str]:
    """Return the compiler flags of a module that is not one of kernels."""
    return flags(COMPACT_FLAGS if name in COMPACT_MODULES else STEP_FLAGS)[0]


def kernel_flags(isa: str, name: str) -> list[str]:
    """Return the compiler flags of a module of kernels in an instruction set, besides those of the set."""
    if not GCC or target_sets() is not X86_SETS:
        return flags()[0]
    is_compact = name in COMPACT_KERNELS or isa == "baseline" and name not in ("channels_last", "selection")
    alignment = [*UNALIGNED_JUMPS, *(ALIGNED_LOOPS if isa == "avx2" and name not in KERNELS_OF_TILES else [])]
    return flags([*alignment, *FLAGS_OF_MODULES.get(name, SHORT_REMAINDERS), *(COMPACT_KERNEL_FLAGS if is_compact else [])])[0]


def write_if_changed(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def extensions() -> list[Extension]:
    import numpy

    _, link_flags = flags()
    headers = sorted(str(p) for p in [*CORE.rglob("*.h"), *CORE.rglob("*.pxd"), *CORE.rglob("*.pxi")])
    common = {"include_dirs": [str(CORE), str(KERNELS), numpy.get_include()], "extra_link_args": link_flags,
              "define_macros": [("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")]}
    found = [Extension(f"ortrain._core.{source.stem}", [str(source)], depends=headers,
                       extra_compile_args=engine_flags(source.stem), **common)
             for source in sorted(CORE.glob("*.pyx"))]
    native_headers = [str(p) for p in sorted([*NATIVE.rglob("*.h"), *NATIVE.rglob("*.pxd"), *NATIVE.rglob("*.pxi")])]
    for source in sorted(NATIVE.glob("*.pyx")) if HAS_LIBRARY else []:
        own = common | {"include_dirs": [*common["include_dirs"], str(NATIVE / "source"), str(NATIVE / "include")]}
        found.append(Extension(f"ortrain._native.{source.stem}", [str(source)], depends=[*headers, *native_headers],
                               extra_compile_args=engine_flags(source.stem), **own))
    for isa, isa_flags in instruction_sets().items():
        modules = [(source.stem, source, isa_flags) for source in sorted(KERNELS.rglob("*.pyx"))]
        if isa in NATIVE_BFLOAT16:
            modules.append(("gemm_bfloat16_native", KERNELS / "matmul" / "gemm_bfloat16.pyx", [*isa_flags, *NATIVE_BFLOAT16[isa]]))
        for name, source, module_flags in modules:
            stub = GENERATED / isa / f"{name}.pyx"
            write_if_changed(stub, f'include "{source.relative_to(KERNELS).as_posix()}"\n')
            found.append(Extension(f"ortrain._core.instruction_sets.{isa}.{name}", [str(stub)], depends=[*headers, str(source)],
                                   extra_compile_args=[*kernel_flags(isa, source.stem), *module_flags], **common))
    only = os.environ.get("ORTRAIN_ONLY")
    return [e for e in found if not only or e.name.rsplit(".", 1)[1] in only.split(",")]


def library_name() -> str:
    """Return the file name of the native library, whose version is a fact of native.toml."""
    with (Path("bindings_spec") / "native.toml").open("rb") as file:
        version = tomllib.load(file)["library_version"]
    return f"libonnxruntime.{version}.dylib" if MACOS else f"libonnxruntime.so.{version}"


class Build(build_ext):
    """Compiles several extensions at a time, by default as many as there are processors, and the native library, which is not a module of Python."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or int(os.environ.get("ORTRAIN_BUILD_JOBS", os.cpu_count() or 1))
        self.is_in_place = bool(self.inplace)       # setuptools builds with `inplace` unset, and copies the files afterwards

    def build_extensions(self) -> None:
        if self.compiler.compiler_type == "msvc":
            raise SystemExit("expected Clang or GCC, whose vector extensions the kernels are written in, got MSVC")
        for extension in self.extensions:
            extension.extra_link_args = [*extension.extra_link_args, *self.wheel_link_flags()]
        super().build_extensions()
        only = os.environ.get("ORTRAIN_ONLY")
        if HAS_LIBRARY and (not only or "native" in only.split(",")):
            self.build_library()

    def wheel_link_flags(self) -> list[str]:
        """Return the flags by which the files of a wheel differ from those of a checkout."""
        return [] if self.is_in_place or self.editable_mode or enabled("ORTRAIN_SANITIZE") else WHEEL_LINK_FLAGS

    def library_path(self) -> Path:
        """Return where the native library goes: beside the bridge."""
        return Path(self.build_lib) / NATIVE / library_name()

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()
        if self.library_path().exists():
            self.copy_file(str(self.library_path()), str(NATIVE / library_name()))

    def get_outputs(self) -> list[str]:
        return super().get_outputs() + ([str(self.library_path())] if HAS_LIBRARY else [])

    def build_library(self) -> None:
        """Compile the native library; Python's headers are only needed for the layout of its configuration."""
        output = self.library_path()
        sources = sorted(map(str, (NATIVE / "source").glob("*.c")))
        inputs = [Path(path) for path in (*sources, *map(str, NATIVE.rglob("*.h")), str(NATIVE / "source" / "exports.map"), "setup.py")]
        if not self.force and output.exists() and output.stat().st_mtime > max(path.stat().st_mtime for path in inputs):
            return
        compile_flags, link_flags = flags()
        includes = [str(NATIVE / "include"), *self.compiler.include_dirs]
        objects = self.compiler.compile(sources, output_dir=self.build_temp, include_dirs=includes,
                                        extra_postargs=["-std=gnu11", "-fPIC", "-Wall", "-Wextra", "-fvisibility=hidden", *compile_flags])
        if MACOS:
            names = ["-dynamiclib", f"-Wl,-install_name,@rpath/{output.name}"]
        else:
            names = ["-shared", "-Wl,-soname,libonnxruntime.so.1", f"-Wl,--version-script={NATIVE / 'source' / 'exports.map'}", "-ldl"]
        output.parent.mkdir(parents=True, exist_ok=True)
        self.spawn([*self.compiler.compiler_so[:1], *names, *objects, "-o", str(output), "-lm", *link_flags, *self.wheel_link_flags()])


debug = enabled("ORTRAIN_DEBUG")
setup(
    ext_modules=cythonize(
        extensions(),
        compiler_directives=DIRECTIVES | ({"boundscheck": True, "wraparound": True, "initializedcheck": True} if debug else {}),
        annotate=enabled("ORTRAIN_ANNOTATE"),
        include_path=[".", str(KERNELS)],
        nthreads=0,
        build_dir="build/cython",
    ),
    cmdclass={"build_ext": Build},
)
