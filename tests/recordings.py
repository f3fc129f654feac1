"""The recorded cases: their files, and how to generate their artifacts with ortrain."""

import json
from functools import cached_property
from pathlib import Path

import numpy as np

from ortrain import onnxblock
from ortrain.artifacts import LossType, OptimType, generate_artifacts

DATA = Path(__file__).parent / "data" / "ort_golden"
OLDER = DATA.with_name("ort_golden_versions")
NEWEST = "1.19.2"
CASES = sorted(path.name for path in DATA.iterdir())
VERSIONED_CASES = [(NEWEST, case) for case in CASES] + [(path.parent.name, path.name) for path in sorted(OLDER.glob("*/*"))]


class WeightedAverageLoss(onnxblock.Block):
    """The loss of the case custom_loss_onnxblock."""

    def __init__(self):
        super().__init__()
        self.ce, self.mse = onnxblock.loss.CrossEntropyLoss(), onnxblock.loss.MSELoss()
        self.w1, self.w2 = onnxblock.blocks.Constant(0.4), onnxblock.blocks.Constant(0.6)

    def build(self, logits, value):
        mul = onnxblock.blocks.Mul()
        first = mul(self.w1(), self.ce(logits))
        return onnxblock.blocks.Add()(first, mul(self.w2(), self.mse(value)))


class Recording:
    """One case, recorded with one version of onnxruntime-training. Files that are the same in 1.19.2 are stored there only."""

    def __init__(self, version, case):
        self.version, self.case = version, case
        self.folders = [OLDER / version / case, DATA / case]
        self.meta = json.loads(self.file("meta.json").read_text())
        assert self.meta["onnxruntime_training"] == version
        self.noisy = set(self.meta["params_with_rounding_noise_gradient"])
        self.updates_after = self.meta["train_steps_per_optimizer_step"]

    @cached_property
    def expected(self):
        return np.load(self.file("expected.npz"))

    @cached_property
    def inputs(self):
        return np.load(self.file("inputs.npz"))

    @cached_property
    def order(self):
        return [str(name) for name in self.inputs["input_order"]]

    def file(self, name):
        return next(folder / name for folder in self.folders if (folder / name).exists())

    def batch(self, key):
        return [self.inputs[f"{key}.{name}"] for name in self.order]

    @property
    def loss(self):
        return WeightedAverageLoss() if self.meta["loss"] == "WeightedAverageLoss" else LossType[self.meta["loss"]]

    @property
    def optimizer(self):
        if self.case == "clip_grad_norm":
            return onnxblock.optim.AdamW(eps=1e-7, weight_decay=0.05, clip_grad=onnxblock.optim.ClipGradNorm(0.25))
        return OptimType[self.meta["optimizer"]]

    def make_artifacts(self, folder, **options):
        """Generate ortrain's artifacts of the forward model."""
        generate_artifacts(self.file("forward.onnx"), self.meta["requires_grad"], self.meta["frozen_params"], self.loss, self.optimizer, folder, **options)

    def check_parameters(self, actual, wanted):
        """Assert that parameters differ by at most 1e-4 of the tensor's largest element, plus 1e-6, plus 3 % of the learning rate.

        Return the largest difference relative to its limit."""
        used = 0.0
        for name, value in actual:
            if name not in self.noisy:
                limit = tensor_limit(wanted[name]) + 0.03 * self.meta["learning_rate"]
                assert value.shape == wanted[name].shape
                used = max(used, float(np.abs(value - wanted[name]).max(initial=0.0)) / limit)
        assert used <= 1, f"{self.case}: a parameter differs by {used:.2f} of what is allowed"
        return used


def tensor_limit(wanted):
    return 1e-4 * float(np.abs(wanted).max(initial=0.0)) + 1e-6
