"""A grid that has few messages out at a time."""

import itertools
import time

import numpy as np
import pytest

pytest.importorskip("flwr")

from ortrain import errors
from ortrain.federated import GuardedGrid, LimitedGrid, client_app, initial_arrays
from tests.federated.test_client import assert_same, make_session, values
from tests.federated.test_strategies import fed, part, rounds
from tests.federated.transport import LocalGrid, message


class PolledGrid(LocalGrid):
    """Keeps replies until they are asked for; each look finds the oldest one at most, as if clients answered one after the other."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.out, self.most, self.numbers = {}, 0, itertools.count(1)

    def push_messages(self, messages):
        for sent in messages:
            sent.metadata.__dict__["_message_id"] = str(next(self.numbers))
            self.out[sent.metadata.message_id] = LocalGrid.send_and_receive(self, [sent])
        self.most = max(self.most, len(self.out))
        return list(self.out)

    def pull_messages(self, message_ids):
        found = next((number for number in self.out if number in message_ids and self.out[number]), None)
        return [] if found is None else self.out.pop(found)

    def send_and_receive(self, messages, *, timeout=None):
        raise AssertionError("expected messages one by one")


class SlowGrid(PolledGrid):
    """Has no reply at the first look, and all at the second one, as if clients answered at the same time."""

    looks = 0

    def pull_messages(self, message_ids):
        self.looks += 1
        return [] if self.looks % 2 else [reply for number in list(message_ids) for reply in self.out.pop(number)]


def grid(nodes=3, answers=lambda node, reply: reply):
    return PolledGrid(dict.fromkeys(range(nodes), client_app(make_session, part, part)), answers)


@pytest.mark.parametrize("limit", [1, 2, 32])
def test_rounds_are_the_same_with_few_messages_out(limit):
    where = grid()
    found = rounds(LimitedGrid(where, limit), number=2, batch_size=100)
    expected = rounds(LocalGrid(where.apps), number=2, batch_size=100)
    for name, array in values(expected.arrays).items():
        np.testing.assert_allclose(values(found.arrays)[name], array, rtol=1e-4, atol=1e-6)
    assert where.most == min(limit, 3) and not where.errors and list(LimitedGrid(where).get_node_ids()) == [0, 1, 2]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_the_remaining_messages_go_out_when_all_replies_have_come_at_once(limit):
    where = SlowGrid(grid(nodes=7).apps, lambda node, reply: reply)
    replies = LimitedGrid(where, limit).send_and_receive([message("train", initial_arrays(make_session()), node) for node in range(7)])
    assert sorted(reply.metadata.src_node_id for reply in replies) == list(range(7)) and where.most == limit


def test_a_guard_sees_the_replies_of_a_limited_grid():
    found, expected = (rounds(where, fed(nodes=1), batch_size=8) for where in (GuardedGrid(LimitedGrid(grid(nodes=1), 1)), LocalGrid(grid(nodes=1).apps)))
    assert_same(values(found.arrays), values(expected.arrays))


def test_clients_that_do_not_answer_are_left_out_after_the_timeout():
    where = LimitedGrid(grid(answers=lambda node, reply: None if node == 1 else reply), 2)
    started = time.monotonic()
    replies = where.send_and_receive([message("train", initial_arrays(make_session()), node) for node in range(3)], timeout=0.5)
    assert [reply.metadata.src_node_id for reply in replies] == [0, 2] and 0.5 <= time.monotonic() - started < 5


def test_nothing_to_send_ends_at_once():
    assert LimitedGrid(grid()).send_and_receive([]) == []


@pytest.mark.parametrize("wrong, kind", [(0, errors.InvalidArgumentError), (1.5, errors.ArgumentTypeError)])
def test_wrong_limits_are_refused(wrong, kind):
    with pytest.raises(kind, match="messages"):
        LimitedGrid(grid(), wrong)
