"""Executes the schedule: signals to processes, rows for replicas to read, clients that disconnect."""

import asyncio
import math
import signal
import time
from collections.abc import Callable

from hardware.faults import Fault, FaultKind
from serving.faults.injected import InjectedFault, InjectedKind
from serving.faults.schedule import GRAVE, choose
from serving.tools.chaos.chaos_result import ChaosRun, Event
from serving.tools.chaos.machines import Machines
from serving.tools.chaos.steady_load import ChaosLoad
from serving.tools.chaos.targets import Target
from serving.tools.chaos.watch import Watch

FROZEN_AT_MOST_S = 120.0
"""A replica that was to be replaced and was not is resumed after this long: the run must be able to end."""
THAW_POLL_S = 0.2
JUDGED_AFTER_S = 8.0
"""A thawed replica that is still listed after this long has survived; a replaced one has left the list by then."""


class ChaosInjector:
    """Executes a schedule at its times.

    Args:
        tell: receives each event when it starts and when it ends.
    """

    def __init__(
        self,
        run: ChaosRun,
        watch: Watch,
        load: ChaosLoad,
        machines: Machines,
        tell: Callable[[Event], None],
    ) -> None:
        self._run = run
        self._watch = watch
        self._load = load
        self._machines = machines
        self._tell = tell
        self._serial = 0
        self._frozen: dict[tuple[str, int], Target] = {}
        self._thawing: set[asyncio.Task[None]] = set()

    async def play(self, schedule: tuple[Fault, ...]) -> None:
        """Play a schedule to its end, or until cancelled."""
        for number, fault in enumerate(schedule, start=1):
            await asyncio.sleep(max(0.0, self._run.begun_s + fault.at_s - time.monotonic()))
            event = await self._carry_out(number, fault)
            self._run.events.append(event)
            self._tell(event)

    def thaw_all(self) -> None:
        """Resume all frozen processes. Effects: SIGCONT; faults inside replicas end."""
        for task in self._thawing:
            task.cancel()
        for target in self._frozen.values():
            self._machines.send(target, signal.SIGCONT)
        self._machines.clear()

    async def _carry_out(self, number: int, fault: Fault) -> Event:
        now = time.monotonic()
        event = Event(number, fault.kind, now - self._run.begun_s, now, fault.at_s)
        if fault.kind is FaultKind.CANCEL_BURST:
            self._load.burst(number, int(fault.factor), fault.draw)
            event.fate = "passed"
            return event
        if fault.kind is FaultKind.FLOOD:
            self._load.flood(number, int(fault.factor), fault.duration_s)
            event.lasts_s, event.fate = fault.duration_s, "passed"
            return event
        chosen = choose(fault, self._watch.healthy())
        target = None if chosen is None else self._watch.target(*chosen)
        if target is None:
            event.fate = "nobody to hit"
            return event
        event.pool, event.target, event.host, event.pid = target.pool, target.name, *target.process
        if fault.kind in GRAVE:
            await self._signal(fault, event, target)
        else:
            event.lasts_s = fault.duration_s
            await asyncio.to_thread(self._ask_for, fault, target)
            if _kind(fault, target) == "bit_flip":
                event.bits = int(fault.factor)
            event.fate = "passed"
        return event

    async def _signal(self, fault: Fault, event: Event, target: Target) -> None:
        freezes = fault.kind is FaultKind.FREEZE
        kind = signal.SIGSTOP if freezes else signal.SIGKILL
        if not await asyncio.to_thread(self._machines.send, target, kind):
            event.fate = "gone before"
            return
        self._watch.faulted[target.process] = target
        if freezes:
            self._frozen[target.process] = target
            event.lasts_s = fault.duration_s if math.isfinite(fault.duration_s) else FROZEN_AT_MOST_S
            task = asyncio.create_task(self._thaw(event, target))
            self._thawing.add(task)
            task.add_done_callback(self._thawing.discard)

    async def _thaw(self, event: Event, target: Target) -> None:
        """Resume a replica at its time, unless it has been replaced."""
        end = time.monotonic() + event.lasts_s
        while True:
            if event.settled or time.monotonic() >= end:
                break
            await asyncio.sleep(min(THAW_POLL_S, max(0.0, end - time.monotonic())))
        del self._frozen[target.process]
        if event.settled:
            return  # replaced: its process must end, which the end of the run checks
        if await asyncio.to_thread(self._machines.send, target, signal.SIGCONT):
            # It may have been replaced since: the watch will see that.
            await asyncio.sleep(JUDGED_AFTER_S)
            if self._watch.listed(target) and not event.settled:
                del self._watch.faulted[target.process]
                event.fate = "survived"
                self._tell(event)

    def _ask_for(self, fault: Fault, target: Target) -> None:
        """Make a replica apply a fault to itself."""
        count = int(fault.factor) if fault.kind is FaultKind.BIT_FLIP else 1
        delay_s = fault.factor if fault.kind is FaultKind.SLOW_LINK else 0.0
        for index in range(count):
            self._serial += 1
            draw = (fault.draw + index / count) % 1.0
            row = InjectedFault(self._serial, _kind(fault, target), target.name, 0.0, delay_s, draw)
            self._machines.inject(target, row, fault.duration_s)


def _kind(fault: Fault, target: Target) -> InjectedKind:
    """A flipped bit is one of a stored block in a memory server, one of a handoff in transfer in an instance."""
    if fault.kind is FaultKind.BIT_FLIP:
        return "bit_flip" if target.pool == "kvcache" else "wrong_bytes"
    assert fault.kind in (FaultKind.SLOW_LINK, FaultKind.FULL_DISK), "the others come from outside"
    return "slow_link" if fault.kind is FaultKind.SLOW_LINK else "full_disk"
