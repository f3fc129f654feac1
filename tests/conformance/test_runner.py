"""How the runner judges replies of languages that lack names of errors, or operations."""

from ortrain.conformance.cases import load_cases
from ortrain.conformance.drivers import driver_for
from ortrain.conformance.runner import run_case
from ortrain.conformance.service import Service

CASES = {case.name: case for case in load_cases()}


class Changed:
    """The C facade, whose replies a function changes."""

    def __init__(self, change):
        self.service, self.change = Service(driver_for("c")), change

    def request(self, message):
        return self.change(message, self.service.request(message))


def without_names(code=None):
    def change(message, reply):
        if "error" in reply:
            reply["error"] |= {"name": None} | ({} if code is None else {"code": code})
        return reply
    return Changed(change)


def without(operation, **replies):
    return Changed(lambda message, reply: {"absent": operation} if message["call"] == operation else replies.get(message["call"].split(".")[-1], reply))


def test_an_error_without_a_name_is_known_by_its_code():
    for name in ("a_missing_checkpoint_is_refused", "a_second_release_is_an_error_in_c", "an_input_of_another_type"):
        assert run_case(without_names(), CASES[name]).verdict == "passed"
        outcome = run_case(without_names(6), CASES[name])
        assert outcome.verdict == "failed" and "expected code" in outcome.detail


def test_a_case_goes_on_after_a_call_that_only_reads_and_is_absent():
    case = CASES["an_input_is_missing"]
    outcome = run_case(without("checkpoint_state.gradient"), case)
    assert (outcome.verdict, outcome.detail) == ("absent", "checkpoint_state.gradient") and len(outcome.shown) == 2
    outcome = run_case(without("checkpoint_state.gradient", get_parameter={"result": 3}), case)
    assert outcome.verdict == "failed" and "get_parameter" in outcome.detail


def test_a_case_ends_at_another_call_that_is_absent():
    outcome = run_case(without("training_session.train_step", eval_step={"result": 3}), CASES["an_input_is_missing"])
    assert (outcome.verdict, outcome.detail, outcome.shown) == ("absent", "training_session.train_step", [])


class Unwritten:
    """The C facade, in which nothing is written into flat buffers."""

    def __init__(self):
        self.service = Service(driver_for("c"))

    def request(self, message):
        arguments = {name: value for name, value in message.get("arguments", {}).items() if name != "write"}
        return self.service.request({**message, "arguments": arguments})


def test_gradients_that_are_not_averaged_fail_their_case():
    outcome = run_case(Unwritten(), CASES["gradients_of_two_sessions_are_averaged"])
    assert outcome.verdict == "failed" and "flat_buffer.value" in outcome.detail
