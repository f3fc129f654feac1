"""`python -m tests.backend [--write]`: print how many cases ortrain and onnx's reference evaluator pass; --write stores the others as exclusions."""

import collections
import re
import sys
import warnings

import onnx
from onnx.reference import ReferenceEvaluator

from ortrain.backend import prepare
from tests.backend.cases import EXCLUSIONS, cases, exclusions, run

REASONS = (
    ("training", r"momentum|adagrad|adam", "optimizers of ai.onnx.preview.training: ortrain has its own, on flat segments"),
    ("preview", r"flexattention|flex_attention", "an operator of ai.onnx.preview"),
    ("random", r"dropout|bernoulli", "draws random numbers, which depend on the generator"),
    ("images", r"image_decoder", "decodes images, which requires Pillow"),
    ("halves", r"attention.*bf16",
     "bfloat16 is computed in float32 and rounded once at the end: more accurate than the expected results, which were rounded after every operator"),
    ("old", r"^test_not_\dd$", "a model of opset 1: ortrain reads 7 and newer"),
)


class Reference:
    """onnx's reference evaluator with the interface of a prepared model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.evaluator = ReferenceEvaluator(model)

    def run(self, inputs):
        return self.evaluator.run(None, dict(zip(self.evaluator.input_names, inputs, strict=False)))


def passes(case, make) -> bool:
    try:
        run(case, make)
    except Exception:
        return False
    return True


def main(arguments: list[str]) -> int:
    warnings.simplefilter("ignore")
    ours = {name: passes(case, prepare) for name, case in cases().items()}
    theirs = {name: passes(case, Reference) for name, case in cases().items()}
    both = sum(ours[name] for name in theirs if theirs[name])
    print(f"{len(ours)} cases: ortrain passes {sum(ours.values())}, onnx's reference evaluator {sum(theirs.values())}, both {both}")
    failed = [name for name, passed in ours.items() if not passed]
    groups = collections.defaultdict(list)
    for name in failed:
        kind = "reference" if not theirs[name] else next((key for key, pattern, _ in REASONS if re.search(pattern, name)), "other")
        groups[kind].append(name)
    texts = {key: text for key, _, text in REASONS} | {"reference": "onnx's reference evaluator does not pass it either", "other": "not there yet"}
    for kind, names in groups.items():
        print(f"{len(names):4d} {kind}: {texts[kind]}")
    if "--write" in arguments:
        lines = ["# Cases of onnx.backend.test that ortrain.backend is not expected to pass: a case here that passes is an error, as is a",
                 "# failure that is not here. Written by `python -m tests.backend --write`.", ""]
        for kind, names in sorted(groups.items()):
            lines += [f"[{kind}]", f'reason = "{texts[kind]}"', "cases = [", *(f'  "{name}",' for name in sorted(names)), "]", ""]
        EXCLUSIONS.write_text("\n".join(lines), encoding="utf-8")
        return 0
    return len(set(failed) ^ set(exclusions()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
