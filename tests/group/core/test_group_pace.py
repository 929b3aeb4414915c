"""Detection of slow ranks from their counters: never a rank that waits, is loaded, or was slow only briefly."""

from random import Random

import pytest

from serving.group.core.group_pace import LEAST_WORK_S, NET_ROWS, GroupPace, StragglerMode, paces
from serving.values.expert_map import ExchangeFacts, ExpertWork

SLICE_S = 2.0
RANKS = 4
STEP_S = 0.004
ROW_S = 2e-5
"""Of experts' work."""


class FakeGroup:
    """Ranks that take steps together on shared cores.

    Args:
        noise: spread of the time of each step's work: the standard deviation of its logarithm.
        slow: {rank: factor}.
    """

    def __init__(
        self, mode: StragglerMode, seed: int, noise: float = 0.5, slow: dict[int, float] | None = None
    ) -> None:
        self.pace = GroupPace(mode, SLICE_S)
        self.pace.follow({rank: 100 + rank for rank in range(RANKS)})
        self.rng, self.noise, self.slow = Random(seed), noise, slow or {}
        self.load = [1.0] * RANKS
        self.now = 0.0
        self.facts = [ExchangeFacts((), (), (0.0,) * RANKS, 0.0) for _ in range(RANKS)]
        self.taken: list[tuple[int, str]] = []

    def run(self, seconds: float, heeds: bool = False) -> None:
        """Advance the time.

        Args:
            heeds: whether a rank's work is reduced as requested.
        """
        for _ in range(round(seconds / SLICE_S)):
            self.now += SLICE_S
            self._steps(heeds)
            for rank, facts in enumerate(self.facts):
                self.pace.count(rank, facts)
            self.taken += [(one.rank, one.measure.value) for one in self.pace.look(self.now)]

    def _steps(self, heeds: bool) -> None:
        """Steps of a slice; other programs use the cores during some of them."""
        speeds = self.pace.speeds()
        for _ in range(12):
            neighbour = self.rng.randrange(2 * RANKS)
            works, rows = [], []
            for rank in range(RANKS):
                load = self.load[rank] * (speeds.get(rank, 1.0) if heeds else 1.0)
                factor = self.slow.get(rank, 1.0) * self.rng.lognormvariate(0.0, self.noise)
                rows.append(round(200 * load))
                works.append(rows[-1] * ROW_S * factor * (2.0 if rank == neighbour else 1.0))
            last = max(range(RANKS), key=works.__getitem__)
            for rank, facts in enumerate(self.facts):
                waited = list(facts.waited_s)
                waited[last] += (works[last] - works[rank]) * 10
                work = facts.work
                done = ExpertWork(work.seconds + works[rank] * 10, work.rows + rows[rank] * 10, work.nets)
                self.facts[rank] = ExchangeFacts(
                    (), (), tuple(waited), facts.worked_s + (works[rank] + STEP_S) * 10, done
                )


@pytest.mark.parametrize("seed", range(2))
def test_noise_alone_is_no_reason_for_anything(seed: int) -> None:
    """Half an hour on cores that are busy with other work half of the time."""
    group = FakeGroup("drain", seed)
    group.run(1800.0)
    assert group.taken == []
    assert set(group.pace.ratios()) == set(range(RANKS))


@pytest.mark.parametrize("seed", range(2))
def test_a_slow_rank_is_found_all_the_same(seed: int) -> None:
    group = FakeGroup("drain", seed, slow={2: 2.0})
    group.run(300.0)
    assert group.taken == [(2, "fewer_tokens"), (2, "fewer_sequences"), (2, "drain")]
    assert group.pace.to_drain() == [2]
    group.pace.follow({rank: 200 + rank if rank == 2 else 100 + rank for rank in range(RANKS)})
    assert group.pace.to_drain() == []
    assert group.pace.speeds() == {}


def test_fewer_sequences_but_never_none() -> None:
    group = FakeGroup("balance", 1, slow={0: 30.0})
    group.run(600.0)
    assert group.taken == [(0, "fewer_tokens"), (0, "fewer_sequences")]
    assert group.pace.share(0) == 0.1
    assert group.pace.measures() == {0: "fewer_sequences"}
    assert group.pace.share(1) == 1.0


def test_off_means_that_it_is_only_shown() -> None:
    group = FakeGroup("off", 3, noise=0.1, slow={3: 2.0})
    group.run(600.0)
    assert group.taken == []
    assert group.pace.ratios()[3] == pytest.approx(2.0, rel=0.25)


def test_who_has_much_to_do_is_not_slow() -> None:
    group = FakeGroup("drain", 2)
    group.load = [1.0, 3.0, 1.0, 0.3]
    group.run(1200.0)
    assert group.taken == []


def counted(seconds: float, rows: int, nets: int, waited: tuple[float, ...] = (0.0, 0.0, 0.0)) -> ExchangeFacts:
    return ExchangeFacts((), (), waited, 1.0 - sum(waited), ExpertWork(seconds, rows, nets))


def test_the_same_work_is_rows_and_the_weights_that_they_take() -> None:
    one = paces({0: counted(0.5, 100, 0), 1: counted(0.5, 0, round(100 / NET_ROWS)), 2: counted(0.5, 50, 0)})
    assert one[0].seconds_per_row == pytest.approx(one[1].seconds_per_row, rel=0.1)
    assert one[2].seconds_per_row == pytest.approx(2 * one[0].seconds_per_row)


def test_awaited_is_what_all_others_wait_for_and_more_than_usual() -> None:
    waits = {0: (0.0, 0.1, 0.5), 1: (0.1, 0.0, 0.4), 2: (0.1, 0.1, 0.0)}
    found = paces({rank: counted(0.5, 100, 0, waited) for rank, waited in waits.items()})
    assert {rank: round(one.awaited, 3) for rank, one in found.items()} == {0: 0.0, 1: 0.0, 2: 0.3}
    assert paces({0: counted(LEAST_WORK_S / 2, 9, 9), 1: counted(1.0, 0, 0)}) == {}, "nothing to go by"


def test_a_rank_without_steps_waits_for_nobody_and_hides_no_slow_one() -> None:
    waits = {0: (0.0, 0.2, 0.0), 1: (0.0, 0.0, 0.0), 2: (0.0, 0.0, 0.0)}
    found = paces({rank: counted(0.5, 100, 0, waited) for rank, waited in waits.items()})
    assert found[1].awaited > 0


def test_a_group_whose_windows_have_more_room_goes_on() -> None:
    pace = GroupPace("drain", SLICE_S)
    pace.follow({0: 1, 1: 2, 2: 3})
    for room in (3, 3, 6):
        for rank in range(3):
            pace.count(rank, ExchangeFacts((), (), (float(room),) * room, 1.0 * room, ExpertWork(room, 100 * room, 0)))
        assert pace.look(0.0) == []
    assert pace.ratios() == {0: 1.0, 1: 1.0, 2: 1.0}
