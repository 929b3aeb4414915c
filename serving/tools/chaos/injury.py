"""Carries out the schedule: signals to processes, rows for replicas to read, clients that leave."""

import asyncio
import signal
import time
from collections.abc import Callable

from serving.injected_faults import InjectedFault, InjectedKind
from serving.tools.chaos.load import ChaosLoad
from serving.tools.chaos.machines import Machines
from serving.tools.chaos.result import ChaosRun, Event
from serving.tools.chaos.scenario import Scenario
from serving.tools.chaos.schedule import GRAVE, PlannedFault, choose
from serving.tools.chaos.targets import Target
from serving.tools.chaos.watch import Watch

FROZEN_AT_MOST_S = 120.0
"""A replica that was to be replaced and was not goes on after this long: the run must be able to end."""
THAW_POLL_S = 0.2
JUDGED_AFTER_S = 8.0
"""A thawed replica that is still listed after this long has survived; one that was given up is gone by then."""


class Injury:
    """Does what a schedule says, at its moments.

    Args:
        tell: told each event as it comes and as it ends.
    """

    def __init__(
        self,
        run: ChaosRun,
        scenario: Scenario,
        watch: Watch,
        load: ChaosLoad,
        machines: Machines,
        tell: Callable[[Event], None],
    ) -> None:
        self._run = run
        self._scenario = scenario
        self._watch = watch
        self._load = load
        self._machines = machines
        self._tell = tell
        self._serial = 0
        self._frozen: dict[tuple[str, int], Target] = {}
        self._thawing: set[asyncio.Task[None]] = set()

    async def play(self, schedule: tuple[PlannedFault, ...]) -> None:
        """Play a schedule to its end, or until cancelled."""
        for planned in schedule:
            await asyncio.sleep(max(0.0, self._run.begun_s + planned.at_s - time.monotonic()))
            event = await self._carry_out(planned)
            self._run.events.append(event)
            self._tell(event)

    def thaw_all(self) -> None:
        """Let whoever is frozen go on. Effects: SIGCONT; faults that replicas have are over."""
        for task in self._thawing:
            task.cancel()
        for target in self._frozen.values():
            self._machines.send(target, signal.SIGCONT)
        self._machines.clear()

    async def _carry_out(self, planned: PlannedFault) -> Event:
        now = time.monotonic()
        event = Event(planned.number, planned.kind, now - self._run.begun_s, now, planned.at_s)
        if planned.kind == "cancel_burst":
            self._load.burst(planned.number, planned.fault.count, planned.draw)
            event.fate = "passed"
            return event
        if planned.kind == "flood":
            self._load.flood(planned.number, planned.fault.count, planned.lasts_s)
            event.lasts_s, event.fate = planned.lasts_s, "passed"
            return event
        chosen = choose(planned, self._watch.healthy(), self._scenario.pools.keep_one)
        target = None if chosen is None else self._watch.target(*chosen)
        if target is None:
            event.fate = "nobody to hit"
            return event
        event.pool, event.target, event.host, event.pid = target.pool, target.name, *target.process
        if planned.kind in GRAVE:
            await self._signal(planned, event, target)
        else:
            event.lasts_s = planned.lasts_s
            await asyncio.to_thread(self._ask_for, planned, target)
            if _kind(planned, target) == "bit_flip":
                event.bits = planned.fault.count
            event.fate = "passed"
        return event

    async def _signal(self, planned: PlannedFault, event: Event, target: Target) -> None:
        kind = signal.SIGSTOP if planned.kind == "freeze" else signal.SIGKILL
        if not await asyncio.to_thread(self._machines.send, target, kind):
            event.fate = "gone before"
            return
        self._watch.hurt[target.process] = target
        if planned.kind == "freeze":
            self._frozen[target.process] = target
            event.lasts_s = FROZEN_AT_MOST_S if planned.fault.until_replaced else planned.lasts_s
            task = asyncio.create_task(self._thaw(event, target))
            self._thawing.add(task)
            task.add_done_callback(self._thawing.discard)

    async def _thaw(self, event: Event, target: Target) -> None:
        """Let a replica go on when its time has come, unless somebody has taken its place."""
        end = time.monotonic() + event.lasts_s
        while True:
            if event.settled or time.monotonic() >= end:
                break
            await asyncio.sleep(min(THAW_POLL_S, max(0.0, end - time.monotonic())))
        del self._frozen[target.process]
        if event.settled:
            return  # replaced: its process is to be gone, and the end of the run looks for it
        if await asyncio.to_thread(self._machines.send, target, signal.SIGCONT):
            # It may have been given up meanwhile: then its place is being taken, which the watch will see.
            await asyncio.sleep(JUDGED_AFTER_S)
            if self._watch.listed(target) and not event.settled:
                del self._watch.hurt[target.process]
                event.fate = "survived"
                self._tell(event)

    def _ask_for(self, planned: PlannedFault, target: Target) -> None:
        """Let a replica do something to itself."""
        for index in range(planned.fault.count if planned.kind == "bit_flip" else 1):
            self._serial += 1
            draw = (planned.draw + index / planned.fault.count) % 1.0
            fault = InjectedFault(self._serial, _kind(planned, target), target.name, 0.0, planned.fault.delay_s, draw)
            self._machines.inject(target, fault, planned.lasts_s)


def _kind(planned: PlannedFault, target: Target) -> InjectedKind:
    """A flipped bit is one of a stored block in a memory server, one of a handoff on its way in an instance."""
    if planned.kind == "bit_flip":
        return "bit_flip" if target.pool == "kvcache" else "wrong_bytes"
    assert planned.kind in ("slow_link", "full_disk"), "the others come from outside"
    return planned.kind
