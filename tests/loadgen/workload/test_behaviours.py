"""Shares of conducts, their numbers, and that they do not disturb each other."""

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from loadgen.errors import UsageError
from loadgen.plan import Behaviour, Conduct, Conversation, Turn
from loadgen.workload.plan_jobs import Behaviours
from loadgen.workload.sessions import Cycled
from tests.loadgen.workload.listed import Listed, at, prompt

MIX = Behaviours(
    disconnect_share=0.2, disconnect_within_s=3.0, slow_reader_share=0.1, slow_reader_bytes_per_s=500.0,
    timeout_share=0.05, give_up_after_s=0.25, malformed_share=0.15, malformations=5,
)  # fmt: skip
MANY = 10_000
ONE = Conversation(turns=[Turn(prompt="a", output_tokens=10)])


def drawn(mix: Behaviours, count: int = MANY, conversation: Conversation = ONE) -> list[Behaviour]:
    rng = np.random.default_rng(8)
    return [mix.draw(conversation, rng)[0] for _ in range(count)]


def test_shares_are_kept() -> None:
    counts = Counter(behaviour.conduct for behaviour in drawn(MIX))
    expected = {
        Conduct.NORMAL: 0.5,
        Conduct.DISCONNECT: 0.2,
        Conduct.SLOW_READER: 0.1,
        Conduct.TIMEOUT: 0.05,
        Conduct.MALFORMED: 0.15,
    }
    assert {conduct: count / MANY for conduct, count in counts.items()} == pytest.approx(expected, abs=0.015)


def test_clients_leave_at_random_moments_and_never_behind_the_answer() -> None:
    leaving = [behaviour for behaviour in drawn(MIX) if behaviour.conduct is Conduct.DISCONNECT]
    moments = np.array([behaviour.leave_after_s for behaviour in leaving])
    assert (moments.min() >= 0, moments.max() < 3.0) == (True, True)
    assert np.mean(moments) == pytest.approx(1.5, rel=0.05)
    assert {behaviour.leave_after_chunks for behaviour in leaving} == set(range(1, 10))

    short = Conversation(turns=[Turn(prompt="a", output_tokens=1)])
    leaving = drawn(Behaviours(disconnect_share=1.0), 20, short)
    assert {behaviour.leave_after_chunks for behaviour in leaving} == {1}


def test_other_conducts_carry_their_own_number_only() -> None:
    kinds = {behaviour.conduct: behaviour for behaviour in drawn(MIX)}
    assert kinds[Conduct.NORMAL] == Behaviour()
    assert kinds[Conduct.SLOW_READER] == Behaviour(conduct=Conduct.SLOW_READER, read_bytes_per_s=500.0)
    assert kinds[Conduct.TIMEOUT] == Behaviour(conduct=Conduct.TIMEOUT, give_up_after_s=0.25)
    wrong = Counter(behaviour.malformation for behaviour in drawn(MIX) if behaviour.conduct is Conduct.MALFORMED)
    assert sorted(wrong) == [0, 1, 2, 3, 4]
    assert list(wrong.values()) == pytest.approx([MANY * 0.15 / 5] * 5, rel=0.2)


def test_shares_do_not_disturb_each_other() -> None:
    def leaving(mix: Behaviours) -> list[int]:
        return [index for index, behaviour in enumerate(drawn(mix)) if behaviour.conduct is Conduct.DISCONNECT]

    assert leaving(MIX) == leaving(replace(MIX, malformed_share=0.5, timeout_share=0.0))
    talk = Conversation(turns=[Turn(prompt="a", output_tokens=5)] * 200)
    conducts = {behaviour.conduct for behaviour in MIX.draw(talk, np.random.default_rng(0))}
    assert conducts == set(Conduct)
    rng = np.random.default_rng(1)
    assert Behaviours().draw(ONE, rng) == []
    assert rng.random() == np.random.default_rng(1).random()
    thirds = Behaviours(disconnect_share=0.1, slow_reader_share=0.2, timeout_share=0.7)
    assert Conduct.NORMAL not in {behaviour.conduct for behaviour in drawn(thirds)}


@pytest.mark.parametrize(
    "shares",
    [
        {"disconnect_share": -0.1},
        {"malformed_share": 1.1},
        {"timeout_share": float("nan")},
        {"disconnect_share": 0.6, "slow_reader_share": 0.5},
    ],
)
def test_impossible_shares_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="shares"):
        Behaviours(**shares)  # type: ignore[arg-type]


def take(workload: Listed, count: int) -> list[tuple[str, float | None]]:
    conversations = Cycled(workload).conversations(np.random.default_rng(0))
    return [(prompt(found), found.arrival_s) for found in itertools.islice(conversations, count)]


def test_times_go_on_at_the_mean_gap() -> None:
    assert take(at(None, None), 5) == [("0", None), ("1", None), ("0", None), ("1", None), ("0", None)]
    assert take(at(0.0, 1.0, 4.0), 7) == [
        ("0", 0.0), ("1", 1.0), ("2", 4.0), ("0", 6.0), ("1", 7.0), ("2", 10.0), ("0", 12.0),
    ]  # fmt: skip
    assert [at_s for _, at_s in take(at(100.0, 101.0, 104.0), 5)] == [100.0, 101.0, 104.0, 106.0, 107.0]
    assert take(at(2.0), 3) == [("0", 2.0), ("0", 4.0), ("0", 6.0)]


def test_what_cannot_be_cycled() -> None:
    with pytest.raises(UsageError, match="no conversation"):
        take(Listed(()), 1)
    for time_s in (0.0, 5.0):
        with pytest.raises(UsageError, match="cannot be cycled"):
            take(at(time_s, time_s), 3)
