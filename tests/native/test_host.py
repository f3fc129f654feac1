"""What the library must leave as it is in its host, and misuse of inference."""

from __future__ import annotations

from tests.native.conftest import ARTIFACTS


def test_arguments_environment_signals_floating_point_mode_and_streams_of_the_host_stay_and_forked_children_are_refused(build, run, sanitized):
    program = build("untouched.c", folder=sanitized)
    assert run(program, ARTIFACTS, ARTIFACTS / "forward.onnx", "--word", "näme") == "untouched\n"


def test_every_misuse_of_inference_that_can_be_seen_is_a_status(build, run, sanitized):
    assert run(build("misused_inference.c", folder=sanitized), ARTIFACTS / "forward.onnx") == "refused\n"
