"""Ranks as threads, with real experts, and the work of their shell: it moves experts, and regroups."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from random import Random

from serving.config.experts import ExpertsConfig
from serving.group.compute.rank_experts import RankExperts
from serving.group.core.group_experts import ExpertRules, GroupExperts
from serving.ids import SequenceId
from serving.model.forms import ProductForms
from serving.model.native.library import load
from serving.model.native.rank_group import raise_epoch
from serving.model.slots.expert_sources import routed_experts
from serving.values.expert_map import CountRows, ExpertOrder, FetchExpert, LoadExpert, MoveOrder, RankEvent
from serving.values.group import MoveOneExpert, PlannedOrder, RankOffer, RebalanceExperts
from serving.values.instances import RankPlace
from serving.values.sequence import SequenceSpec
from tests.group.rank_threads import IDLE_S, Answer, RankThreads, drive

LIMIT_S = 100.0
RULES = ExpertRules(policy="none", window_s=0.2, slices=2, bytes_per_s=1e12)


class LostError(Exception):
    """Raised to end a rank during its work."""


class ShelledGroup:
    """A group whose experts move all the time.

    Args:
        group: joined with other slots before; gets these instead.
        config: of slots.
    """

    def __init__(self, group: RankThreads, folder: Path, config: ExpertsConfig, seed: int) -> None:
        self._group, self._random = group, Random(seed)
        self.core = GroupExperts(RULES)
        self.ranks = [
            RankExperts(config, place, routed_experts(group.model, folder, _forms), folder / f"r{place.number}")
            for place in (RankPlace(rank, group.ranks, group.ranks, "g") for rank in range(group.ranks))
        ]
        self.members = list(range(group.ranks))
        offers = self._offers()
        first = self.core.regroup(offers, group.ranks, 1, time.monotonic())
        for rank, experts in enumerate(self.ranks):
            table = experts.prepare(first)
            place = replace(group.places[rank], slots=experts.table, expert_map=table, map_version=first.version)
            group.executors[rank].group.join(place)
            experts.join(group.executors[rank].group, offers)
        self._events: SimpleQueue[tuple[int, RankEvent]] = SimpleQueue()
        self._lost: int | None = None
        self._random_orders = threading.Event()
        self._random_orders.set()
        self._over = threading.Event()
        self._failures: list[BaseException] = []
        self._orders: list[PlannedOrder] = []
        """Commands to be given in order; random ones are inserted between them."""

    def run(
        self, work: Sequence[Sequence[SequenceSpec]], between: Callable[[int, int], None]
    ) -> list[dict[SequenceId, Answer]]:
        """Results of the ranks, each for its own requests, while experts move.

        Args:
            between: called by each rank's thread before its steps, with rank and number of step; may raise `LostError`.
        """
        answers: list[dict[SequenceId, Answer]] = [{} for _ in work]
        drained = [threading.Event() for _ in work]

        def compute(rank: int) -> None:
            executor = self._group.executors[rank]

            def idle() -> bool:
                drained[rank].set()
                executor.serve(IDLE_S)
                return not self._over.is_set()

            try:
                drive(executor, work[rank], self._group.settings, idle, lambda step: between(rank, step), answers[rank])
            except LostError:
                self._lost = rank
            except BaseException as error:
                self._failures.append(error)
            drained[rank].set()

        threads = [threading.Thread(target=compute, args=(rank,)) for rank in range(len(work))]
        for thread in (*threads, shell := threading.Thread(target=self._shell)):
            thread.start()
        for one in drained:
            assert one.wait(LIMIT_S), "the ranks do not end in time"
        self._random_orders.clear()
        self.until(lambda: self._lost is None and not self.busy)
        self._come_home()
        self._over.set()
        for executor in self._group.executors:
            executor.wake()
        for thread in (*threads, shell):
            thread.join(LIMIT_S)
        assert not self._failures, self._failures
        return answers

    @property
    def busy(self) -> bool:
        """Whether experts are moving."""
        return self.core.ledger is None or self.core.ledger.busy

    @property
    def borrowed(self) -> int:
        """Experts that the current map has in reserves."""
        ledger = self.core.ledger
        assert ledger is not None
        return sum(len(ledger.borrowed(layer)) for layer in range(self._group.layers))

    def reserve(self, rank: int) -> int:
        """Non-empty slots of a rank's reserve."""
        experts = self.ranks[rank]
        of_layer = experts.own + experts.experts
        numbers = [
            layer * of_layer + slot for layer in range(self._group.layers) for slot in range(experts.own, of_layer)
        ]
        return sum(experts.table.gate_up[number].out_features > 0 for number in numbers)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert not self._failures, self._failures
            assert time.monotonic() < deadline, "in time"
            time.sleep(0.001)

    def close(self) -> None:
        """Release all resources, once no rank computes."""
        for experts in self.ranks:
            experts.close()

    def _come_home(self) -> None:
        """Move borrowed experts into own slots, if there is space, and release the contents of reserves."""
        ledger = self.core.ledger
        assert ledger is not None
        self._orders = [RebalanceExperts("global")]
        if all(len(ledger.usable(layer)) >= self._group.experts for layer in range(self._group.layers)):
            self.until(lambda: not self.borrowed)
        self.until(lambda: not self.busy and not self._orders)
        for rank in self.members:
            self.ranks[rank].give_back()

    def _shell(self) -> None:
        try:
            while not self._over.is_set():
                self._look()
        except BaseException as error:
            self._failures.append(error)

    def _look(self) -> None:
        now = time.monotonic()
        if self._lost is not None:
            self._regroup(self._lost)
            self._lost = None
        try:
            rank, event = self._events.get(timeout=0.001)
            self._take(self.core.on(rank, _pid(rank), event, now))
        except Empty:
            wake = self.core.next_wake()
            if wake is not None and wake <= now:
                self._take(self.core.tick(now))
        self.core.confirm({rank: self.ranks[rank].map_version for rank in self.members}, now)
        if self.core.count_due(now):
            for rank in self.members:
                self._give(rank, CountRows())
        order = self._next_order()
        ledger = self.core.ledger
        if order is not None and ledger is not None:
            plan = self.core.plan_order(order, now)
            answer, effects = self.core.begin_order(order, plan, ledger.map.version, now)
            if answer.accepted and order in self._orders:
                self._orders.remove(order)
            self._take(effects)

    def _next_order(self) -> PlannedOrder | None:
        if self.busy:
            return None
        if self._orders:
            return self._orders[0]
        if not self._random_orders.is_set():
            return None
        one = self._random
        if one.random() < 0.3:
            return RebalanceExperts(one.choice(("global", "time_sliced", "static")))
        return MoveOneExpert(
            one.randrange(self._group.layers), one.randrange(self._group.experts), one.choice(self.members)
        )

    def _regroup(self, lost: int) -> None:
        """Regroup like a shell and its ranks: end moves, send a map without the lost rank, start an epoch."""
        now, library = time.monotonic(), load()
        assert library is not None
        self._take(self.core.abandon("a rank was lost", now))
        self.members.remove(lost)
        offers = self._offers()
        new = self.core.regroup(offers, self._group.ranks, 1, now)
        for rank in self.members:
            experts = self.ranks[rank]
            self._group.executors[rank].group.set_map(new.version, experts.prepare(new), 2)
            experts.join(self._group.executors[rank].group, offers)
        for rank in self.members:
            raise_epoch(library, self._group.windows[rank], 2, sum(1 << one for one in self.members))

    def _take(self, effects: Sequence[MoveOrder]) -> None:
        for effect in effects:
            alone = effect.move.to.rank if isinstance(effect, FetchExpert | LoadExpert) else None
            for rank in self.members if alone is None else [one for one in self.members if one == alone]:
                self._give(rank, effect)

    def _give(self, rank: int, order: ExpertOrder) -> None:
        def answered(events: tuple[RankEvent, ...]) -> None:
            for event in events:
                self._events.put((rank, event))

        self.ranks[rank].carry_out((order,), answered)

    def _offers(self) -> list[RankOffer]:
        return [
            RankOffer(rank, _pid(rank), "", "", experts=one.experts, held=one.held, slots=one.offer)
            for rank, one in enumerate(self.ranks)
            if rank in self.members
        ]


def _pid(rank: int) -> int:
    return 100 + rank


def _forms() -> ProductForms:
    raise AssertionError("experts come from the loaded model")
