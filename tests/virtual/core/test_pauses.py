"""Tool pauses in virtual time: the live gateway's core, for the turns of jobs."""

from collections.abc import Callable

import pytest

from serving.values.kv_hints import HintAction, HintOutcome, HintVerb
from serving.virtual.memory_pool import VirtualPool
from serving.virtual.simulation import simulate
from tests.virtual.core.key_cases import CASES, agents

Sent = list[tuple[HintAction, HintOutcome]]


@pytest.fixture
def hints(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Sent]:
    """Runs agents' conversations. Returns: the actions sent to memory servers, with their outcomes."""

    def run(**load: object) -> Sent:
        sent: Sent = []
        hint = VirtualPool.hint

        def noted(pool: VirtualPool, namespace: str, action: HintAction, now: float) -> HintOutcome:
            outcome = hint(pool, namespace, action, now)
            sent.append((action, outcome))
            return outcome

        monkeypatch.setattr(VirtualPool, "hint", noted)
        simulate(CASES["agents"].config, agents(**load))  # type: ignore[arg-type]
        return sent

    return run


def test_long_pauses_are_spent_on_ssd(hints: Callable[..., Sent]) -> None:
    sent = hints(pause_s=40.0)
    verbs = [action.verb for action, _ in sent]
    assert verbs.count(HintVerb.RETAIN) == verbs.count(HintVerb.DEMOTE) > 20
    assert verbs.count(HintVerb.PREFETCH) > 20
    assert {outcome.wanted > 0 for _, outcome in sent} == {True}, "the servers know the sessions' blocks"
    assert {action.branch for action, _ in sent} == {"", "1"}


def test_short_pauses_are_spent_in_memory_and_people_are_not_waited_for(hints: Callable[..., Sent]) -> None:
    assert {action.verb for action, _ in hints(pause_s=5.0)} == {HintVerb.RETAIN}
    assert hints(stop="end_turn") == []
