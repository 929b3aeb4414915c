"""A shell makes its group whole, whatever happens to the ranks, and takes over what another one has left."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from serving.instance.core.group_course import Kill, Make, RankSight, SeenGroup, Start, abandoned, mend, orphan, whole
from serving.values.group import RankLease, RankOffer, RankPhase, RankReport

SILENCE_S = 15.0
LEASE = RankLease("abc", 1, 1)


def report(rank: int, phase: RankPhase, pid: int = 0, *, together: bool = False, stalled_s: float = 0.0) -> RankReport:
    offered = phase not in (RankPhase.LOADING, RankPhase.FAILED)
    offer = RankOffer(rank, pid, "", "x") if offered else None
    return RankReport(LEASE, phase, pid, "n", offer, together, stalled_s, "no room" * (phase is RankPhase.FAILED))


def sights(*phases: RankPhase, together: bool = False) -> dict[int, RankSight]:
    return {n: RankSight(report=report(n, phase, together=together)) for n, phase in enumerate(phases)}


def test_a_shell_takes_over_what_nobody_holds() -> None:
    held, left, leaving = SeenGroup("a", "one"), SeenGroup("b", "gone"), SeenGroup("c", "gone", leaving=True)
    assert orphan([held, leaving, left], {"one"}) == left
    assert orphan([held, leaving], {"one"}) is None
    assert orphan([SeenGroup("z", "gone"), left], set()) == left, "all shells that look see the same first"


def test_a_place_without_ranks_is_given_back_unless_its_shell_is_there() -> None:
    places = {"decode#a", "decode#b", "decode#c"}
    assert abandoned(places, {"decode#b"}, {"c"}) == ["decode#a"]


def test_a_rank_alone_is_replaced_and_the_others_go_on() -> None:
    there = sights(RankPhase.SERVING, RankPhase.SERVING)
    assert mend(there, 2, SILENCE_S) == []
    assert whole(there, 2)
    assert mend({**there, 1: RankSight(dead=True)}, 2, SILENCE_S) == [Kill(1, "has ended")]
    assert mend({0: there[0]}, 2, SILENCE_S) == [Make(1)]
    assert not whole({0: there[0]}, 2)


def test_ranks_that_compute_together_are_begun_anew_together() -> None:
    there = sights(RankPhase.SERVING, RankPhase.SERVING, together=True)
    orders = mend({**there, 1: RankSight(dead=True)}, 2, SILENCE_S)
    assert orders == [Kill(0, "rank 1 has ended"), Kill(1, "has ended")]
    waiting = sights(RankPhase.OFFERED, RankPhase.OFFERED, together=True)
    assert mend({**waiting, 1: RankSight(dead=True)}, 2, SILENCE_S) == [Kill(1, "has ended")], "none has begun"


def test_why_a_rank_is_replaced() -> None:
    silent = RankSight(silent_s=20.0, report=report(0, RankPhase.SERVING))
    failed = RankSight(report=report(0, RankPhase.FAILED))
    stalled = RankSight(report=report(0, RankPhase.SERVING, stalled_s=31.0))
    assert mend({0: silent}, 1, SILENCE_S) == [Kill(0, "has not answered for 20 s")]
    assert mend({0: failed}, 1, SILENCE_S) == [Kill(0, "could not be built: no room")]
    assert mend({0: stalled}, 1, SILENCE_S) == [Kill(0, "has had work for 31.0 s without making a step")]


class Group(RuleBasedStateMachine):
    """A group whose ranks die, freeze and fail at any time, between a shell's orders."""

    @initialize(size=st.integers(1, 4), together=st.booleans())
    def begin(self, size: int, together: bool) -> None:
        self.size, self.together = size, together
        self.ranks: dict[int, RankSight] = {}
        self.met: dict[int, tuple[int, ...]] = {}
        """For each rank that serves, the processes that it joined."""
        self.pids = 0

    def _set(self, rank: int, phase: RankPhase, stalled_s: float = 0.0) -> None:
        before = self.ranks[rank].report
        pid = before.pid if before is not None else 0
        self.ranks[rank] = RankSight(report=report(rank, phase, pid, together=self.together, stalled_s=stalled_s))

    @rule(data=st.data())
    @precondition(lambda self: self.ranks)
    def hurt(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(sorted(self.ranks)))
        now = self.ranks[rank].report
        match data.draw(st.sampled_from(("die", "freeze", "fail", "stall"))):
            case "die":
                self.ranks[rank] = RankSight(dead=True, report=now)
            case "freeze":
                self.ranks[rank] = RankSight(silent_s=SILENCE_S + 1, report=now)
            case "fail" if now is not None and now.phase is RankPhase.LOADING:
                self._set(rank, RankPhase.FAILED)
            case "stall" if now is not None and now.phase is RankPhase.SERVING:
                self._set(rank, RankPhase.SERVING, 31.0)

    @rule(data=st.data())
    @precondition(lambda self: self.ranks)
    def load(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(sorted(self.ranks)))
        self._load(rank)

    def _load(self, rank: int) -> None:
        now = self.ranks[rank].report
        if now is not None and now.phase is RankPhase.LOADING and not self.ranks[rank].dead:
            self._set(rank, RankPhase.OFFERED)

    @rule()
    def obey(self) -> None:
        for order in mend(self.ranks, self.size, SILENCE_S):
            match order:
                case Make(rank):
                    assert rank not in self.ranks
                    self.pids += 1
                    self.ranks[rank] = RankSight(report=report(rank, RankPhase.LOADING, self.pids))
                case Kill(rank):
                    del self.ranks[rank]
                    self.met.pop(rank, None)
                case Start(rank, offers):
                    assert [offer.rank for offer in offers] == list(range(self.size))
                    now = self.ranks[rank].report
                    assert now is not None
                    assert now.offer in offers
                    self._set(rank, RankPhase.SERVING)
                    self.met[rank] = tuple(offer.pid for offer in offers)

    @invariant()
    def no_rank_computes_with_a_process_that_its_peers_have_not(self) -> None:
        if not hasattr(self, "ranks") or not self.together:
            return
        well = [rank for rank, sight in self.ranks.items() if not mend({rank: sight}, 0, SILENCE_S)]
        assert len({met for rank, met in self.met.items() if rank in well}) <= 1

    def teardown(self) -> None:
        """Left alone, it gets whole."""
        if not hasattr(self, "ranks"):
            return
        for _ in range(6):
            self.obey()
            for rank in list(self.ranks):
                self._load(rank)
        assert whole(self.ranks, self.size)
        assert mend(self.ranks, self.size, SILENCE_S) == []


TestGroup = Group.TestCase
TestGroup.settings = settings(max_examples=60, stateful_step_count=25)
