"""Link states: saturated is not lost; which peers are avoided, and which troubled ones are not."""

from collections.abc import Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serving.ids import ReplicaId
from serving.values.health import (
    BETTER_AFTER,
    WORSE_AFTER,
    LinkHealth,
    LinkLimits,
    LinkState,
    PathFault,
    decodes_to_avoid,
    prefills_to_avoid,
)

LIMITS = LinkLimits(period_s=0.5, late_s=0.25, lost_s=1.0)
P0, P1 = ReplicaId("p0"), ReplicaId("p1")
D0, D1, D2 = ReplicaId("d0"), ReplicaId("d1"), ReplicaId("d2")


def test_dummies_are_sent_only_where_nothing_passes() -> None:
    health = LinkHealth(LIMITS, 0.0)
    assert not health.dummy_due(0.4)
    assert health.dummy_due(0.5)
    health.blocks_arrived(0.5)
    assert not health.dummy_due(0.9)
    assert health.dummy_due(1.0)
    health.dummy_sent(1.0)
    assert not health.dummy_due(1.4)
    assert not LinkHealth(LinkLimits(0.0, 0.25, 1.0), 0.0).dummy_due(1e9), "switched off"


LATE, PROMPT, NOTHING, BLOCKS = "late", "prompt", "nothing", "blocks"
HEALTHY, SATURATED, LOST = LinkState.HEALTHY, LinkState.SATURATED, LinkState.LOST


@pytest.mark.parametrize(
    ("arrivals", "states"),
    [
        ((LATE, LATE, LATE, PROMPT, PROMPT), (HEALTHY, HEALTHY, SATURATED, SATURATED, HEALTHY)),
        ((LATE, PROMPT) * 10, (HEALTHY,) * 20),  # one slow read has no effect
        ((NOTHING, NOTHING, NOTHING, PROMPT, PROMPT), (HEALTHY, HEALTHY, LOST, LOST, HEALTHY)),
        ((NOTHING, NOTHING, NOTHING, LATE, LATE), (HEALTHY, HEALTHY, LOST, LOST, SATURATED)),  # it is back, but slow
        ((NOTHING, NOTHING, BLOCKS, NOTHING), (HEALTHY,) * 4),  # not three in a row; blocks are never late
        ((NOTHING, NOTHING, NOTHING, BLOCKS), (HEALTHY, HEALTHY, LOST, HEALTHY)),  # where no probe can decide
    ],
)
def test_what_arrives_tells_the_state(arrivals: Sequence[str], states: Sequence[LinkState]) -> None:
    health = LinkHealth(LIMITS, 0.0)
    since = 0.0
    for now, (what, state) in enumerate(zip(arrivals, states, strict=True), 1):
        before = health.state
        match what:
            case "nothing":
                health.nothing_arrived(now)
            case "blocks":
                health.blocks_arrived(now)
            case _:
                health.dummy_arrived(0.3 if what == LATE else 0.01, now)
        since = now if state is not before else since
        assert (health.state, health.since) == (state, since)


class LinkMachine(RuleBasedStateMachine):
    """For any order of results, states change only after enough equal results in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.health = LinkHealth(LIMITS, 0.0)
        self.recent: list[str] = []
        self.before = LinkState.HEALTHY

    def _step(self, what: str) -> None:
        self.now += 1.0
        self.before = self.health.state
        self.recent.append(what)

    @rule(late=st.booleans())
    def dummy(self, late: bool) -> None:
        self._step("late" if late else "prompt")
        self.health.dummy_arrived(0.3 if late else 0.1, self.now)

    @rule()
    def nothing(self) -> None:
        self._step("nothing")
        self.health.nothing_arrived(self.now)

    @rule()
    def blocks(self) -> None:
        self._step("blocks")
        self.health.blocks_arrived(self.now)

    def _run(self, what: str, count: int, others: tuple[str, ...] = ()) -> bool:
        """Whether `what` occurred this often lately, with only `others` in between."""
        found = 0
        for one in reversed(self.recent):
            if one == what:
                found += 1
            elif one not in others:
                break
        return found >= count

    @invariant()
    def changes_are_earned(self) -> None:
        state = self.health.state
        if state is self.before:
            return
        assert self.health.since == self.now
        if state is LinkState.LOST:
            assert self._run("nothing", WORSE_AFTER)
        elif state is LinkState.HEALTHY:
            passed = self.before is LinkState.LOST and self.recent[-1] == "blocks"
            assert passed or self._run("prompt", BETTER_AFTER, ("blocks",))
        else:
            assert self._run("late", BETTER_AFTER, ("blocks",))

    @precondition(lambda self: self.health.state is LinkState.LOST)
    @rule()
    def two_prompt_dummies_always_heal(self) -> None:
        for _ in range(BETTER_AFTER):
            self.dummy(False)
        assert self.health.state is LinkState.HEALTHY


TestLinkMachine = LinkMachine.TestCase


def test_instances_that_cannot_reach_each_other_are_avoided() -> None:
    path_faults = {D0: PathFault(lost=(P0,)), D1: PathFault(), D2: PathFault(late=(P0,))}
    assert decodes_to_avoid(P0, path_faults) == (D0, D2)
    assert decodes_to_avoid(P1, path_faults) == decodes_to_avoid(P0, {}) == ()
    path_faults = {D0: PathFault(lost=(P0,)), D1: PathFault(late=(P0,))}
    assert decodes_to_avoid(P0, path_faults) == (D0,), "slow ones are used when all others are lost"
    path_faults = {D0: PathFault(lost=(P0,)), D1: PathFault(lost=(P0, P1))}
    assert prefills_to_avoid([P0, P1], path_faults) == (P0,)
    assert prefills_to_avoid([P0, P1], {}) == ()
