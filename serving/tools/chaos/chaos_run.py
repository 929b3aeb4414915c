"""One run, from the first check of a system to the audit: reference, load with faults, idle phase, audit."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

from hardware.faults import Fault
from loadgen.progress_bar import ProgressBar, ProgressConsole
from loadgen.report import numbers
from serving.client.http_client import RefusedError, ask_gateway
from serving.errors import ConfigError
from serving.faults.scenario import LIVE, Scenario, check_flood_keys, check_reach
from serving.faults.schedule import OF_PARTS, plan_faults
from serving.terminal import ending_signals, leave_closed_terminal
from serving.tools.chaos.asks import make_asks
from serving.tools.chaos.chaos_client import GatewayEndpoint
from serving.tools.chaos.chaos_result import ChaosRun, Event
from serving.tools.chaos.final_audit import look_for_leaks
from serving.tools.chaos.injector import ChaosInjector
from serving.tools.chaos.machines import Machines, ThisMachine
from serving.tools.chaos.steady_load import ChaosLoad
from serving.tools.chaos.targets import units_at
from serving.tools.chaos.watch import Downtime, Watch

HEAL_S = 60.0
"""Time limit of the last replacements after the end of the load."""


class ChaosListener(Protocol):
    """Listener that shows the progress of a run."""

    def stage(self, text: str) -> None:
        """A new part of the run starts."""
        ...

    def event(self, event: Event) -> None:
        """A fault was injected, or its outcome is known."""
        ...

    def tick(self, run: ChaosRun, at_s: float, in_flight: int, faults: int) -> None:
        """Time advances under load; `faults`: of the schedule."""
        ...


@dataclass(frozen=True, slots=True)
class ChaosOrder:
    """Parameters of a run: faults and load, and the system to run against.

    Args:
        machines: locates the system's processes, from the response of `GET /cluster`.
        flood_api_key: of the tenant that sends floods; needed if the scenario has one.
    """

    name: str
    scenario: Scenario
    seed: int
    duration_s: float
    url: str
    api_key: str | None = None
    machines: Callable[[dict[str, Any]], Machines] = ThisMachine.of
    flood_api_key: str | None = None


async def run_chaos(order: ChaosOrder, listener: ChaosListener) -> ChaosRun:
    """Run a scenario against a live system.

    Returns: the results; `findings` judges them.
    Raises: UnavailableError if there is no such system, its processes cannot be reached, or it fails undisturbed;
        ConfigError if the scenario needs what the system's configuration does not allow or a live system does not
        support,
        no fault of it would occur, or a flood would not come from another tenant.
    Effects: processes are injured as the scenario defines; all frozen ones are resumed at the end. Ctrl-C ends the load
        early, a second one the settling time after it.
    """
    check_flood_keys(order.scenario, order.api_key, order.flood_api_key)
    status = await asyncio.to_thread(ask_gateway, order.url, "/cluster", order.api_key)
    if order.scenario.has_flood:
        await asyncio.to_thread(_check_tenants, order)
    if order.scenario.needs_hooks and not status.get("chaos"):
        raise ConfigError(
            "the scenario has faults that replicas must have from inside (bit_flip, slow_link, full_disk), and the "
            "system does not allow it: set [chaos] enabled = true in its configuration"
        )
    machines = await asyncio.to_thread(order.machines, status)
    units = units_at(status)
    check_reach(order.scenario, LIVE, "cloudmatrix chaos", units.pools)
    schedule = plan_faults(order.scenario, order.seed, order.duration_s, units)
    if not any(fault.at_s < order.duration_s for fault in schedule):
        pools = ", ".join(units.pools)
        raise ConfigError(
            f"no fault would come in {order.duration_s:g} s at the pools {pools}: raise --duration, lower "
            "first_s, every_s or quiet_s; and give a weight to a pool that the system has"
        )
    run = ChaosRun(order.name, order.seed, machines.session, status["model"], asked_s=order.duration_s)
    run.most_down_s = order.scenario.scenario.most_down_s
    asks = make_asks(order.scenario.load, order.seed, status["model"])
    endpoint = GatewayEndpoint.of(order.url, order.api_key)
    flooder = GatewayEndpoint.of(order.url, order.flood_api_key)
    load = ChaosLoad(run, endpoint, asks, order.scenario.load.deadline_s, flooder)
    parts = any(fault.kind in OF_PARTS for fault in schedule)
    watch = Watch(run, order.url, order.api_key, load, machines, parts=parts)
    injector = ChaosInjector(run, watch, load, machines, listener.event)
    stop, hurry = asyncio.Event(), asyncio.Event()
    with _interrupts(stop, hurry):
        listener.stage(f"asking {len(asks)} requests twice, undisturbed")
        await _unless(stop, load.learn())
        if not stop.is_set():
            listener.stage(f"load with {len(schedule)} faults in {order.duration_s:g} s")
            await _under_load(order, run, load, watch, injector, machines, schedule, (stop, hurry), listener)
        run.interrupted = stop.is_set()
    return run


def _check_tenants(order: ChaosOrder) -> None:
    """Raises: ConfigError if the gateway does not know the flood's key, or does not distinguish keys."""
    try:
        ask_gateway(order.url, "/v1/models", order.flood_api_key)
    except RefusedError as error:
        raise ConfigError(f"--flood-api-key: {error}") from None
    try:
        ask_gateway(order.url, "/v1/models", None)
    except RefusedError:
        return
    raise ConfigError("the gateway requires no API key, so a `flood` and the load are one tenant: configure two keys")


async def _under_load(
    order: ChaosOrder,
    run: ChaosRun,
    load: ChaosLoad,
    watch: Watch,
    injector: ChaosInjector,
    machines: Machines,
    schedule: tuple[Fault, ...],
    interrupts: tuple[asyncio.Event, asyncio.Event],
    listener: ChaosListener,
) -> None:
    """All concurrent tasks, and the audit after them."""
    stop, hurry = interrupts
    run.begun_s = time.monotonic()
    await watch.look()
    ended = asyncio.Event()
    beside = [
        asyncio.create_task(watch.look_forever()),
        asyncio.create_task(injector.play(schedule)),
        asyncio.create_task(Downtime(run, order.url, order.api_key).ask_forever()),
        asyncio.create_task(_tell(run, load, len(schedule), listener)),
    ]
    sending = asyncio.create_task(load.send_steadily(order.scenario.load.rate_per_s, ended))
    try:
        await _first_of(stop.wait(), asyncio.sleep(order.duration_s), *beside)
        ended.set()
        await sending
        run.duration_s = time.monotonic() - run.begun_s
        listener.stage("waiting for what is under way")
        beside[1].cancel()
        await _unless(hurry, load.finish())
        await load.leave()
        listener.stage("waiting until all lost replicas have been replaced")
        await _unless(hurry, _healed(run))
    finally:
        injector.thaw_all()
        for task in [*beside, sending]:
            task.cancel()
        await asyncio.gather(*beside, sending, return_exceptions=True)
    for event in run.events:
        event.fate = "not replaced" if event.fate == "under way" else event.fate
    listener.stage("looking for leaks")
    run.leaks = await asyncio.to_thread(
        look_for_leaks,
        order.url,
        order.api_key,
        machines,
        list(watch.faulted.values()),
        0.0 if hurry.is_set() else order.scenario.scenario.settle_s,
        bits=sum(event.bits for event in run.events),
    )


async def _healed(run: ChaosRun) -> None:
    """Wait until every fault's outcome is known, for at most `HEAL_S`."""
    deadline = time.monotonic() + HEAL_S
    while True:
        if all(event.settled for event in run.events) or time.monotonic() > deadline:
            return
        await asyncio.sleep(0.2)


async def _tell(run: ChaosRun, load: ChaosLoad, faults: int, listener: ChaosListener) -> None:
    while True:
        listener.tick(run, time.monotonic() - run.begun_s, load.in_flight, faults)
        await asyncio.sleep(0.25)


async def _first_of(*waits: Coroutine[Any, Any, Any] | asyncio.Task[None]) -> None:
    """Wait for the stop, the end, or a failing task; a task that ends normally does not end the run.

    Raises: the exception of a task.
    """
    stop, end = asyncio.ensure_future(waits[0]), asyncio.ensure_future(waits[1])
    tasks = {asyncio.ensure_future(wait) for wait in waits[2:]}
    try:
        while not (stop.done() or end.done()):
            done, _ = await asyncio.wait({stop, end, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in done & tasks:
                tasks.discard(task)
                task.result()
    finally:
        stop.cancel()
        end.cancel()


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Await a task unless stopped, which cancels it."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not working.done():
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        return
    working.result()


@contextlib.contextmanager
def _interrupts(stop: asyncio.Event, hurry: asyncio.Event) -> Iterator[None]:
    """End the run early, with its report, on a signal that stops a command; a second one also ends the settling."""
    loop = asyncio.get_running_loop()

    def asked() -> None:
        leave_closed_terminal()
        if stop.is_set():
            hurry.set()
        stop.set()

    kinds = ending_signals()
    before = [signal.getsignal(kind) for kind in kinds]
    for kind in kinds:
        loop.add_signal_handler(kind, asked)
    try:
        yield
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            loop.remove_signal_handler(kind)
            signal.signal(kind, handler)  # asyncio leaves the default one, which would end us without ending anything


# Progress of a run, on stderr: time left, counts, and a line for each fault.


class ChaosProgress:
    """A bar over the run's time, and a line for each event.

    Args:
        quiet: print nothing.
    """

    def __init__(self, duration_s: float, *, quiet: bool) -> None:
        self._console = ProgressConsole(quiet=quiet)
        self._bar = ProgressBar("chaos", duration_s, quiet=quiet, console=self._console)
        self._seen: dict[int, str] = {}

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.__exit__(kind, error, at)

    def stage(self, text: str) -> None:
        """Start a new part of the run."""
        self._console.print(f"{time.strftime('%H:%M:%S')} {text} ...")

    def event(self, event: Event) -> None:
        """A fault was injected, or its outcome is known."""
        if self._seen.get(event.number) == event.fate:
            return
        self._seen[event.number] = event.fate
        whom = f" {event.target} (process {event.where})" if event.target else ""
        lasts = f" for {numbers.duration(event.lasts_s)}" if event.lasts_s else ""
        took = f" after {numbers.duration(event.replaced_s)}" if event.replaced_s is not None else ""
        fate = "" if event.fate in ("under way", "passed") else f": {event.fate}{took}"
        self._console.print(f"{numbers.clock(event.at_s):>7} {event.kind}{whom}{lasts}{fate}", markup=False)

    def tick(self, run: ChaosRun, at_s: float, in_flight: int, faults: int) -> None:
        """Advance the time under load."""
        for event in run.events:
            if event.fate == "replaced":
                self.event(event)
        failed = sum(answer.outcome == "failed" for answer in run.answers)
        text = (
            f"faults {len(run.events)}/{faults}, sent {len(run.answers):,}, in flight {in_flight}, failed {failed}, "
            f"other tokens {len(run.differences)}"
        )
        self._bar.update(at_s, text)
