"""A random life of a group under shells that move experts, regroup, die and are replaced."""

from collections import deque

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from serving.group.core.group_experts import ExpertRules, GroupExperts
from serving.group.core.operator_plan import Refusal
from serving.values.expert_map import (
    ExpertMap,
    FetchExpert,
    LoadExpert,
    MapSwitched,
    MoveFailed,
    MoveFetched,
    MoveLoaded,
    MoveOrder,
    MovesEnded,
    MovesStopped,
    SwitchMap,
)
from serving.values.group import MoveOneExpert, PlannedOrder, RankOffer, RebalanceExperts

EXPERTS, LAYERS = 4, 2
RULES = ExpertRules(policy="none", bytes_per_s=1e12)


class Process:
    """One rank's process: real contents of its slots, and commands that it has received but not done."""

    def __init__(self, rank: int, pid: int, held: list[list[int | None]]) -> None:
        self.rank, self.pid, self.held = rank, pid, held
        self.asked: deque[MoveOrder] = deque()
        self.loading: LoadExpert | None = None
        self.maps: dict[int, ExpertMap] = {}
        """The maps that it received, by version."""
        self.told: set[int] = set()
        """Versions whose use was reported to the shell."""

    def offer(self) -> RankOffer:
        held = tuple(map(tuple, self.held))
        return RankOffer(self.rank, self.pid, "", "", experts=EXPERTS, held=held)


class GroupLife(RuleBasedStateMachine):
    """Two to four ranks, some of which may be missing. No token is computed with wrong weights."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.pids = 0.0, 0
        self.ranks: dict[int, Process] = {}
        self.members: list[int] = []
        self.used: ExpertMap | None = None
        self.next: ExpertMap | None = None
        """Map of an epoch that has not started."""
        self.stopping = False
        """A new shell has queried the contents of slots, and has not received all responses."""

    # ---- the shell's part --------------------------------------------------------------------------------------------

    @initialize(size=st.integers(2, 4), redundant=st.integers(0, 2))
    def begin_group(self, size: int, redundant: int) -> None:
        self.size, self.slots = size, -(-EXPERTS // size) + redundant
        self.core = GroupExperts(RULES)
        for rank in range(size):
            self._make(rank)
        self._regroup(sorted(self.ranks))
        self.begin_epoch()

    @precondition(lambda self: not self.stopping)
    @rule(
        order=st.one_of(
            st.builds(MoveOneExpert, st.integers(0, LAYERS - 1), st.integers(0, EXPERTS - 1), st.integers(0, 3)),
            st.builds(RebalanceExperts, st.sampled_from(["static", "global", "time_sliced", "hierarchical"])),
        )
    )
    def order(self, order: PlannedOrder) -> None:
        self.confirm()
        ledger = self.core.ledger
        assert ledger is not None
        plan = self.core.plan_order(order, self.now)
        _, effects = self.core.begin_order(order, plan, ledger.map.version, self.now)
        self._give(effects)

    @precondition(lambda self: not self.stopping)
    @rule(layer=st.integers(0, LAYERS - 1))
    def order_what_is_not_there(self, layer: int) -> None:
        """An unknown expert is not reported as a conflict, even while moves are running."""
        self.confirm()
        plan = self.core.plan_order(MoveOneExpert(layer, EXPERTS, 0), self.now)
        assert isinstance(plan, Refusal)
        assert plan.unknown or "being formed" in plan.reason

    def confirm(self) -> None:
        if not self.stopping and self.used is not None:
            self.core.confirm(dict.fromkeys(self.members, self.used.version), self.now)

    @rule(seconds=st.sampled_from([0.1, 0.1, 0.1, 1.0, 200.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        if not self.stopping:
            self._give(self.core.tick(self.now))

    @precondition(lambda self: self.next is not None)
    @rule()
    def begin_epoch(self) -> None:
        self.used, self.next = self.next, None

    @precondition(lambda self: len(self.members) > 1)
    @rule(data=st.data(), chance=st.integers(0, 3))
    def lose(self, data: st.DataObject, chance: int) -> None:
        if chance:
            return
        lost = data.draw(st.sampled_from(self.members))
        del self.ranks[lost]
        self._learn()
        self.used = None  # no rank computes until the next epoch
        self._regroup([rank for rank in self.members if rank != lost])

    @precondition(lambda self: len(self.members) < self.size)
    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from([one for one in range(self.size) if one not in self.members]))
        self._learn()
        self._make(rank, data)
        self._regroup(sorted([*self.members, rank]))

    @precondition(lambda self: not self.stopping)
    @rule(chance=st.integers(0, 3))
    def shell_dies(self, chance: int) -> None:
        """The next shell queries all ranks; the group continues in between."""
        if chance:
            return
        self.core = GroupExperts(RULES)
        self.stopping = True
        self._give([MovesEnded("another shell has taken over")])

    @precondition(lambda self: self.stopping and all(not self.ranks[one].asked for one in self.members))
    @rule()
    def take_over(self) -> None:
        self.stopping = False
        if self.next is not None:  # it was half done: another epoch
            self._regroup(self.members)
        else:
            offers = [self.ranks[one].offer() for one in self.members]
            self._give(self.core.adopt(offers, self.size, self._version(), self.now))

    # ---- the ranks' part ---------------------------------------------------------------------------------------------

    @rule(turns=st.lists(st.integers(0, 3), max_size=12), fails=st.integers(0, 9))
    def work(self, turns: list[int], fails: int) -> None:
        """Ranks execute their next commands, in any order; a load takes two steps."""
        for turn in turns:
            busy = [rank for rank in self.members if self.ranks[rank].asked or self.ranks[rank].loading]
            if busy:
                self._work(self.ranks[busy[turn % len(busy)]], fails == 0)
                self.no_token_meets_wrong_weights()

    @rule()
    def go_on(self) -> None:
        """Ranks execute all commands, and adopt maps."""
        for turn in range(8):
            self.work([turn] * 4, 1)
            self.take_up_map()

    @rule()
    def take_up_map(self) -> None:
        """All ranks adopt the latest map that all have, and report it."""
        if self.used is None or self.next is not None:
            return
        common = set.intersection(*(set(self.ranks[rank].maps) for rank in self.members))
        newest = max((one for one in common if one > self.used.version), default=None)
        if newest is not None:
            self.used = self.ranks[self.members[0]].maps[newest]
        for rank in self.members:
            process = self.ranks[rank]
            for version in [one for one in process.maps if one <= self.used.version and one not in process.told]:
                process.told.add(version)
                if not self.stopping:
                    self._give(self.core.on(rank, process.pid, MapSwitched(version), self.now))

    @invariant()
    def no_token_meets_wrong_weights(self) -> None:
        if self.used is None:
            return
        self.used.check()
        assert not any(layer.masked for layer in self.used.layers)
        for layer, one in enumerate(self.used.layers):
            for expert, homes in enumerate(one.homes):
                for home in homes:
                    held = self.ranks[home.at.rank].held[layer]
                    found = held[home.at.slot] if home.at.slot < len(held) else home.at.slot - len(held)
                    assert found == expert, (self.used.version, layer, home)

    def teardown(self) -> None:
        """Without further events, moves finish, and another one can be made."""
        if not self.members:
            return
        for _ in range(200):
            for rank in self.members:
                if self.ranks[rank].asked or self.ranks[rank].loading:
                    self._work(self.ranks[rank], False)
            if self.next is not None and not self.stopping:
                self.begin_epoch()
            if self.stopping and all(not self.ranks[one].asked for one in self.members):
                self.take_over()
            self.take_up_map()
            self.confirm()
            self.pass_time(0.1)
            self.no_token_meets_wrong_weights()
        ledger = self.core.ledger
        assert ledger is not None
        assert not ledger.busy
        ledger.check()
        assert self.used is not None
        assert self.used.version == ledger.map.version

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _make(self, rank: int, data: st.DataObject | None = None) -> None:
        self.pids += 1
        first = rank * self.slots
        held: list[list[int | None]] = [[(first + slot) % EXPERTS for slot in range(self.slots)] for _ in range(LAYERS)]
        if data is not None:
            held = [list(data.draw(st.permutations(row))) for row in held]
        self.ranks[rank] = Process(rank, self.pids, held)

    def _regroup(self, members: list[int]) -> None:
        self._give(self.core.abandon("the group's members have changed", self.now))
        self.members = members
        offers = [self.ranks[rank].offer() for rank in members]
        self.next = new = self.core.regroup(offers, self.size, self._version(), self.now)
        for rank in members:
            self.ranks[rank].maps[new.version] = new

    def _learn(self) -> None:
        """A shell that does not know the contents of slots receives them before it makes a map."""
        while self.stopping and any(self.ranks[one].asked for one in self.members if one in self.ranks):
            for rank in [one for one in self.members if one in self.ranks]:
                if self.ranks[rank].asked or self.ranks[rank].loading:
                    self._work(self.ranks[rank], False)
        self.stopping = False

    def _version(self) -> int:
        return 1 + max((version for one in self.ranks.values() for version in one.maps), default=0)

    def _give(self, effects: list[MoveOrder]) -> None:
        for effect in effects:
            for rank in self.members:
                alone = isinstance(effect, FetchExpert | LoadExpert)
                if rank in self.ranks and (not alone or effect.move.to.rank == rank):  # type: ignore[union-attr]
                    self.ranks[rank].asked.append(effect)

    def _work(self, process: Process, fails: bool) -> None:
        event: MoveFetched | MoveFailed | MoveLoaded | MovesStopped | None = None
        if process.loading is not None:
            move, process.loading = process.loading.move, None
            process.held[move.layer][move.to.slot] = None if fails else move.expert
            event = MoveFailed(move, "the disk is gone") if fails else MoveLoaded(move)
        else:
            match process.asked.popleft():
                case FetchExpert(move):
                    event = MoveFailed(move, "the disk is gone") if fails else MoveFetched(move)
                case LoadExpert(move) as load:
                    process.loading = load
                    process.held[move.layer][move.to.slot] = None
                case SwitchMap(new):
                    if new.version > max(process.maps, default=0):
                        process.maps[new.version] = new
                case MovesEnded():
                    event = MovesStopped(process.rank, process.offer().held)
        if event is not None and (not self.stopping or isinstance(event, MovesStopped)):
            self._give(self.core.on(process.rank, process.pid, event, self.now))
