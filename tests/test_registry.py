"""Records, kernels and samples are complete: the tests name every operator, kernel or sample that is missing."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from ortrain import ops
from ortrain._core.kernel_table import kernels, supported_instruction_sets
from ortrain.dtypes import name_of
from ortrain.errors import MissingKernelError, OrtrainError
from ortrain.ir import Node
from ortrain.ops import custom
from ortrain.ops.registry.record import REGISTRY, Alias, InferenceContext, KernelCall, LoweringContext
from ortrain.ops.registry.shape_inference import ShapeInference
from ortrain.ops.registry.unsupported import UNSUPPORTED_OPERATORS
from tests.ops.harness import cast, context_arguments, runs_as_program
from tests.ops.samples import FAMILIES, Refusal, Sample

PACKAGE = Path(ops.__file__).resolve().parents[1]
KERNELS = PACKAGE / "_core" / "kernels"
BUILT = PACKAGE / "_core" / "instruction_sets"
SAMPLES = Path(__file__).parent / "ops" / "samples"


def sample_modules():
    return [importlib.import_module(f"tests.ops.samples.{family}") for family in FAMILIES]


def samples() -> list[Sample]:
    return [sample for module in sample_modules() for sample in module.SAMPLES]


def lowered(sample: Sample, dtype: str) -> KernelCall | Alias | None:
    """Return the lowered form of a sample, None when it is decomposed."""
    arrays = cast(sample, dtype)
    if runs_as_program(sample, arrays):
        return None
    node, types, values, opset = context_arguments(sample, arrays)
    record = REGISTRY[sample.domain, sample.op_type]
    assert record.lower is not None, f"{sample.op_type} has a sample but no lowering"
    out_types = record.infer(InferenceContext(node, types, values, opset))
    return record.lower(LoweringContext(node, types, values, opset, out_types))


def first_dtype(sample: Sample, dtype: str) -> str:
    """Return the dtype that selects the sample's kernel: that of its first input, or of its first output if it has no inputs."""
    arrays = [x for x in cast(sample, dtype) if x is not None]
    if arrays:
        return name_of(arrays[0].dtype)
    node, types, values, opset = context_arguments(sample, [])
    return REGISTRY[sample.domain, sample.op_type].infer(InferenceContext(node, types, values, opset))[0].dtype


def file_of(family: str) -> str:
    """Return the file of a family's module, relative to the package of families."""
    return f"{family.replace('.', '/')}.py"


def strings_in(*sources: Path) -> set[str]:
    """Return all string literals of Python files."""
    return {node.value for path in sources for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def assert_none_missing(missing) -> None:
    assert not missing, f"missing: {', '.join(map(str, sorted(missing)))}"


def test_every_family_has_records_and_samples():
    missing = [p for family in FAMILIES for p in (PACKAGE / "ops" / file_of(family), SAMPLES / file_of(family)) if not p.exists()]
    assert_none_missing(missing)
    # a family may use the kernels of another one, but every kernel file belongs to a family; the GEMMs are the engine's, and fused the plan's
    strays = [p.stem for p in KERNELS.rglob("*.pyx") if p.stem not in (*FAMILIES, "gemm", "gemm_float64", "gemm_bfloat16", "fused")]
    assert not strays


def test_every_record_has_a_sample():
    sampled = {(sample.domain, sample.op_type) for sample in samples()}
    # the operators of optimizer models have no lowering: ortrain.training.optimizer reads them
    runnable = {key for key, record in REGISTRY.items() if record.lower is not None or record.decompose is not None}
    # tested in test_custom_operators.py
    users = {key for key, record in REGISTRY.items() if record.infer.__module__ == custom.__name__}
    control_flow = {("", "If"), ("", "Scan")}                  # tested in tests/ops/test_control.py and test_loop.py
    assert_none_missing({f"{domain}::{op}" for domain, op in runnable - sampled - users - control_flow})


def test_every_sample_has_a_record():
    sampled = {(s.domain, s.op_type) for module in sample_modules() for s in (*module.SAMPLES, *getattr(module, "REFUSALS", ()))}
    assert_none_missing({f"{domain}::{op}" for domain, op in sampled - set(REGISTRY)})


def test_every_record_has_a_summary():
    assert_none_missing({op for (_, op), record in REGISTRY.items() if not record.summary})


def test_no_operator_without_gradient_has_a_gradient_rule():
    assert not sorted(op for (_, op), record in REGISTRY.items() if record.gradient is not None and not record.differentiable)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_lowering_names_a_kernel(dtype):
    table, missing = kernels(), set()
    for sample in samples():
        call = lowered(sample, dtype)
        if isinstance(call, KernelCall) and call.function is None and (call.kernel, first_dtype(sample, dtype)) not in table:
            missing.add((sample.op_type, call.kernel, first_dtype(sample, dtype)))
    assert_none_missing(missing)


def test_every_operator_with_an_elementwise_kernel_is_elementwise():
    sources = [(KERNELS / "elementwise" / f"{name}.pyx").read_text(encoding="utf-8") for name in ("elementwise", "activation")]
    elementwise = {name for source in sources for name in re.findall(r'^    "(\w+)": \(<size_t>', source, re.MULTILINE)}
    assert len(elementwise) > 80
    calls = {(sample.domain, sample.op_type): lowered(sample, "float32") for sample in samples()}
    assert_none_missing({key for key, call in calls.items() if isinstance(call, KernelCall) and call.kernel in elementwise and not REGISTRY[key].elementwise})


def test_every_kernel_is_run_by_a_sample():
    """Exempt are the kernels that the plan, the runner and the optimizer name themselves."""
    named = strings_in(*(PACKAGE / "plan").rglob("*.py"), *(PACKAGE / "training").glob("*.py"), PACKAGE / "runtime" / "runner.py")
    reached = {call.kernel for sample in samples() for call in [lowered(sample, "float64")] if isinstance(call, KernelCall)}
    assert_none_missing({name for name, _ in kernels()} - reached - named)


def test_every_instruction_set_has_the_same_kernels():
    """A development build may leave out instruction sets and families; a family built for two sets must have the same kernels in both."""
    tables: dict[str, dict[str, dict]] = {}
    for isa in supported_instruction_sets():
        for path in (BUILT / isa).iterdir():
            if path.suffix in (".so", ".pyd"):
                family = path.name.partition(".")[0]
                module = importlib.import_module(f"ortrain._core.instruction_sets.{isa}.{family}")
                tables.setdefault(family, {})[isa] = {name: dtypes for name, (_, dtypes) in module.KERNELS.items()}
    for family, by_set in tables.items():
        first = next(iter(by_set.values()))
        assert all(table == first for table in by_set.values()), f"{family} differs between {sorted(by_set)}"


@pytest.mark.parametrize("path", sorted(KERNELS.rglob("*.pyx")), ids=lambda p: p.stem)
def test_every_cython_kernel_has_a_docstring(path):
    source = "\n".join(p.read_text(encoding="utf-8") for p in (path, *KERNELS.rglob("*.pxi")))
    undocumented = []
    for function in re.findall(r"<size_t>\s*&\s*(\w+)", source[source.index("KERNELS = {") :]):
        start = re.search(rf"^cdef int {function}\([^)]*\)[^:]*:\n", source, re.MULTILINE)
        if start and not source[start.end() :].startswith('    """'):
            undocumented.append(function)
    assert not undocumented


def test_refusals_are_refused():
    for module in sample_modules():
        for refusal in getattr(module, "REFUSALS", ()):
            assert isinstance(refusal, Refusal)
            arrays = cast(refusal, "float64")
            sample = Sample(refusal.op_type, refusal.inputs, lambda *_: None, refusal.attributes, refusal.domain, opset=refusal.opset,
                            constants=refusal.constants)
            node, types, values, opset = context_arguments(sample, arrays)
            record = REGISTRY[refusal.domain, refusal.op_type]
            with pytest.raises(OrtrainError, match=refusal.match):
                out_types = record.infer(InferenceContext(node, types, values, opset))
                record.lower(LoweringContext(node, types, values, opset, out_types))


OPTIMIZER_MODEL_OPERATORS = {"AdamWOptimizer", "SGDOptimizerV2", "InplaceClipGradNorm"}
"""Operators of optimizer models, which ortrain.training.optimizer reads."""


def test_every_operator_of_onnxruntime_training_has_a_record_or_a_reason():
    upstream = set((Path(__file__).parent / "data" / "old_operators.txt").read_text(encoding="utf-8").split())
    known = {op_type for _, op_type in REGISTRY}
    assert_none_missing(upstream - known - set(UNSUPPORTED_OPERATORS) - OPTIMIZER_MODEL_OPERATORS)
    assert not known & set(UNSUPPORTED_OPERATORS)


def test_an_operator_without_a_record_is_refused_with_the_reason():
    inference = ShapeInference({"": 17, "com.microsoft": 1}, {}, {})
    for op_type, reason in UNSUPPORTED_OPERATORS.items():
        with pytest.raises(MissingKernelError, match=f"{op_type}: {reason}"):
            inference.visit(Node(op_type, [], ["y"], "n", "com.microsoft", {}))
    with pytest.raises(MissingKernelError, match=r"got ai.onnx::Send \(node"):
        inference.visit(Node("Send", [], ["y"], "n", "", {}))
