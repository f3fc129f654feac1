"""Records, kernels and samples agree: whatever is missing is named here."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from ortrain import ops
from ortrain._core.kernel_table import kernels, supported_sets
from ortrain.dtypes import name_of
from ortrain.errors import MissingKernelError, OrtrainError
from ortrain.ir import Node
from ortrain.ops import custom
from ortrain.ops.registry.record import REGISTRY, Alias, InferenceContext, KernelCall, LoweringContext
from ortrain.ops.registry.shape_inference import Inference
from ortrain.ops.registry.unsupported import ABSENT
from tests.ops.harness import cast, contexts, expansion
from tests.ops.samples import Refusal, Sample

PACKAGE = Path(ops.__file__).resolve().parents[1]
KERNELS = PACKAGE / "_core" / "kernels"
BUILT = PACKAGE / "_core" / "instruction_sets"
SAMPLES = Path(__file__).parent / "ops" / "samples"


def sample_modules():
    return [importlib.import_module(f"tests.ops.samples.{family}") for family in ops.FAMILIES]


def samples() -> list[Sample]:
    return [sample for module in sample_modules() for sample in module.SAMPLES]


def lowered(sample: Sample, dtype: str) -> KernelCall | Alias | None:
    """How the sample's record lowers it; None when it expands to other operators."""
    arrays = cast(sample, dtype)
    if expansion(sample, arrays) is not None:
        return None
    node, types, values, opset = contexts(sample, arrays)
    record = REGISTRY[sample.domain, sample.op_type]
    assert record.lower is not None, f"{sample.op_type} has a sample and no lowering"
    out_types = record.infer(InferenceContext(node, types, values, opset))
    return record.lower(LoweringContext(node, types, values, opset, out_types))


def first_dtype(sample: Sample, dtype: str) -> str:
    """The dtype by which a kernel is looked up."""
    arrays = [x for x in cast(sample, dtype) if x is not None]
    if arrays:
        return name_of(arrays[0].dtype)
    node, types, values, opset = contexts(sample, [])
    return REGISTRY[sample.domain, sample.op_type].infer(InferenceContext(node, types, values, opset))[0].dtype


def file_of(family: str) -> str:
    return f"{family.replace('.', '/')}.py"


def strings_in(*sources: Path) -> set[str]:
    return {node.value for path in sources for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def none(missing) -> None:
    assert not missing, f"missing: {', '.join(map(str, sorted(missing)))}"


def test_every_family_has_its_three_files():
    missing = [p for family in ops.FAMILIES for p in (PACKAGE / "ops" / file_of(family), SAMPLES / file_of(family)) if not p.exists()]
    none(missing)
    # a family may run on another family's kernels, but a kernel file belongs to a family
    strays = [p.stem for p in KERNELS.rglob("*.pyx") if p.stem not in (*ops.FAMILIES, "gemm")]
    assert not strays


def test_every_record_has_a_sample():
    sampled = {(sample.domain, sample.op_type) for sample in samples()}
    # without a lowering no kernel runs it: the optimizer's operators on sequences are read by ortrain.training.optimizer
    runnable = {key for key, record in REGISTRY.items() if record.lower is not None or record.decompose is not None}
    # users' operators and the call of their gradients have tests in test_custom_operators.py
    users = {key for key, record in REGISTRY.items() if record.infer.__module__ == custom.__name__}
    graphs = {("", "If"), ("", "Scan")}                        # tests/ops/test_control.py, test_loop.py
    none({f"{domain}::{op}" for domain, op in runnable - sampled - users - graphs})


def test_every_sample_has_a_record():
    wanted = {(s.domain, s.op_type) for module in sample_modules() for s in (*module.SAMPLES, *getattr(module, "REFUSALS", ()))}
    none({f"{domain}::{op}" for domain, op in wanted - set(REGISTRY)})


def test_every_record_says_what_it_computes():
    none({op for (_, op), record in REGISTRY.items() if not record.summary})


def test_a_stopped_or_fixed_operator_has_no_rule():
    assert not sorted(op for (_, op), record in REGISTRY.items() if record.gradient is not None and not record.differentiable)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_lowering_names_a_kernel(dtype):
    table, missing = kernels(), set()
    for sample in samples():
        how = lowered(sample, dtype)
        if isinstance(how, KernelCall) and how.function is None and (how.kernel, first_dtype(sample, dtype)) not in table:
            missing.add((sample.op_type, how.kernel, first_dtype(sample, dtype)))
    none(missing)


def test_every_kernel_is_run_by_a_sample():
    """Or by the plan and the optimizer, which name theirs themselves."""
    named = strings_in(*(PACKAGE / "plan").rglob("*.py"), PACKAGE / "training" / "optimizer.py", PACKAGE / "runtime" / "runner.py")
    reached = {how.kernel for sample in samples() for how in [lowered(sample, "float64")] if isinstance(how, KernelCall)}
    none({name for name, _ in kernels()} - reached - named)


def test_every_instruction_set_has_the_same_kernels():
    """A daily build may leave out sets and families; a family that two sets have is the same in both."""
    tables: dict[str, dict[str, dict]] = {}
    for isa in supported_sets():
        for path in (BUILT / isa).iterdir():
            if path.suffix in (".so", ".pyd"):
                family = path.name.partition(".")[0]
                module = importlib.import_module(f"ortrain._core.instruction_sets.{isa}.{family}")
                tables.setdefault(family, {})[isa] = {name: dtypes for name, (_, dtypes) in module.KERNELS.items()}
    for family, by_set in tables.items():
        first = next(iter(by_set.values()))
        assert all(table == first for table in by_set.values()), f"{family} differs between {sorted(by_set)}"


@pytest.mark.parametrize("path", sorted(KERNELS.rglob("*.pyx")), ids=lambda p: p.stem)
def test_every_kernel_written_in_cython_says_what_it_computes(path):
    source = "\n".join(p.read_text(encoding="utf-8") for p in (path, *KERNELS.rglob("*.pxi")))
    silent = []
    for function in re.findall(r"<size_t>\s*&\s*(\w+)", source[source.index("KERNELS = {") :]):
        start = re.search(rf"^cdef int {function}\([^)]*\)[^:]*:\n", source, re.MULTILINE)
        if start and not source[start.end() :].startswith('    """'):
            silent.append(function)
    assert not silent


def test_refusals_are_refused():
    accepted = []
    for module in sample_modules():
        for refusal in getattr(module, "REFUSALS", ()):
            assert isinstance(refusal, Refusal)
            arrays = cast(refusal, "float64")
            sample = Sample(refusal.op_type, refusal.inputs, lambda *_: None, refusal.attributes, refusal.domain, opset=refusal.opset,
                            constants=refusal.constants)
            node, types, values, opset = contexts(sample, arrays)
            record = REGISTRY[refusal.domain, refusal.op_type]
            with pytest.raises(OrtrainError, match=refusal.match):
                out_types = record.infer(InferenceContext(node, types, values, opset))
                accepted.append(refusal.op_type)
                record.lower(LoweringContext(node, types, values, opset, out_types))


SWEEPS = {"AdamWOptimizer", "SGDOptimizerV2", "InplaceClipGradNorm"}
"""What optimizer models are made of: ortrain.training.optimizer reads them."""


def test_every_operator_of_the_old_package_has_a_record_or_a_reason():
    old = set((Path(__file__).parent / "data" / "old_operators.txt").read_text(encoding="utf-8").split())
    known = {op_type for _, op_type in REGISTRY}
    none(old - known - set(ABSENT) - SWEEPS)
    assert not known & set(ABSENT)


def test_an_operator_without_a_record_is_refused_with_the_reason():
    inference = Inference({"": 17, "com.microsoft": 1}, {}, {})
    for op_type, reason in ABSENT.items():
        with pytest.raises(MissingKernelError, match=f"{op_type}: {reason}"):
            inference.visit(Node(op_type, [], ["y"], "n", "com.microsoft", {}))
    with pytest.raises(MissingKernelError, match=r"got ai.onnx::Send \(node"):
        inference.visit(Node("Send", [], ["y"], "n", "", {}))
