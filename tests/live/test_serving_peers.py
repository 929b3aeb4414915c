"""The engine's thread of a rank: when idle, it serves its peers, and returns immediately for its own events."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from serving.instance.core.settings import EngineRole
from serving.instance.live.engine_loop import MAX_IDLE_WAIT_S, STEP_LIMITS, EngineLoop
from serving.values.news import Lost, Refused, Tokens
from tests.fakes.clock import ManualClock
from tests.fakes.group_executor import FakeGroupExecutor
from tests.fakes.transport import FakeFabric
from tests.live.rig import NOBODY, Rig, spec, wait_for


class GroupRig(Rig):
    """A rank's loop on a clock that does not move."""

    def __init__(self) -> None:
        super().__init__(EngineRole.DECODE, FakeFabric(), "decode#1.r0")
        self.group = FakeGroupExecutor(self.executor)
        self.clock = ManualClock()
        self.loop = EngineLoop(
            self.engine, self.group, self.transport, self.clock, self.news.extend, "rank", on=self._on
        )


@pytest.fixture
def rank() -> Iterator[GroupRig]:
    rig = GroupRig()
    rig.loop.start()
    yield rig
    rig.group.peer_done.set()
    rig.loop.stop()
    rig.assert_ended()


def ended(rank: GroupRig) -> bool:
    return any(isinstance(item, Tokens) and item.finish_reason for item in rank.news)


def test_what_comes_in_ends_serving(rank: GroupRig) -> None:
    assert rank.group.serving.wait(60)
    rank.add(spec())
    wait_for(lambda: ended(rank), "its end")
    assert rank.group.serving.wait(60), "and then it serves again"


def test_what_comes_in_just_before_serving_is_not_missed(rank: GroupRig) -> None:
    """Between the loop's last check and the wait, repeatedly: no other wake-up follows."""
    for count in range(1, 51):
        assert rank.group.serving.wait(60)
        rank.group.before = once(rank)
        rank.loop.post(NOBODY)  # back from serving; the next one arrives when it is about to serve again
        wait_for(partial(told, rank, 2 * count), "both")


def told(rank: GroupRig, times: int) -> bool:
    return rank.told.count(NOBODY) == times


def once(rank: GroupRig) -> Callable[[], None]:
    def post() -> None:
        rank.group.before = lambda: None
        rank.loop.post(NOBODY)

    return post


def test_a_peers_long_step_is_no_hang_of_this_rank(rank: GroupRig) -> None:
    assert rank.group.serving.wait(60)
    rank.group.peer_done.clear()
    rank.loop.post(NOBODY)  # there is work, and the thread does not return
    rank.clock.seconds += MAX_IDLE_WAIT_S + STEP_LIMITS.first_s - 0.1
    assert rank.loop.progress_age_s() == 0.0
    rank.clock.seconds += 0.2
    assert rank.loop.progress_age_s() == pytest.approx(STEP_LIMITS.first_s + 0.1), "but nothing lasts for ever"
    rank.group.peer_done.set()
    rank.quiet()


@pytest.mark.parametrize("at_work", [False, True])
def test_a_rank_whose_group_cannot_go_on_says_so_at_once(rank: GroupRig, at_work: bool) -> None:
    """Gateways move its streams, and its shell replaces it: no request fails."""
    assert rank.group.serving.wait(60)
    rank.group.lost = True
    if at_work:
        rank.add(spec())
    else:
        rank.loop.post(NOBODY)
    wait_for(lambda: rank.loop.progress_age_s() == float("inf"), "a crash")
    assert not any(isinstance(item, Refused | Lost) for item in rank.news)


def test_a_rank_that_leaves_its_group_has_not_crashed(rank: GroupRig) -> None:
    """Its waits end as soon as it is to stop."""
    assert rank.group.serving.wait(60)
    rank.loop.stop(release=lambda: setattr(rank.group, "lost", True))
    rank.assert_ended()
    assert rank.loop.progress_age_s() == 0.0
