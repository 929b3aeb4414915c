"""Server CPU per streamed token, all processes of the system, 64 streams at once.

Counted is every process below `cloudmatrix serve`, user and system time: the gateway with its HTTP server, both
instances, Serve's controller, the membership actor, and all of Ray's daemons, with what they use when idle. Not counted
is the client. Tokens are those that the gateway passed on. Two lines:

paced   The instances' executor takes 50 ms per step and computes nothing (a model at 20 tokens/s per stream), so the
        figure is serving alone: engine, links, gateway, detokenizing, SSE, HTTP. Goal: 350 us per token.
model   The real model, as fast as it goes, one compute thread per instance. Shown in total, and without the CPU time
        of the executor's calls (forward pass and sampling), which is again serving alone.

Every window has streams of its own, and begins when all of them run.
"""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from serving.model.config import read_architecture
from tests.benchmarks.conditions import (
    Figure,
    checkpoint,
    conditions,
    make_parser,
    progress,
    report,
    show_conditions,
)
from tests.benchmarks.paced_serve import read_meters
from tests.benchmarks.served import Served, Setup

GOAL_US = 350.0
SETTLE_S = 2.0
PROMPT = "Once upon a time there was"


@dataclass(frozen=True, slots=True)
class Window:
    """One measured stretch of time: CPU seconds by role, and of the executors' calls among them."""

    seconds: float
    tokens: int
    by_role: Mapping[str, float]
    executor_s: float

    @property
    def total_us(self) -> float:
        """CPU per token, everything [us]."""
        return sum(self.by_role.values()) / self.tokens * 1e6

    @property
    def serving_us(self) -> float:
        """CPU per token without the executors' calls [us]."""
        return self.total_us - self.executor_s / self.tokens * 1e6

    def role_us(self, role: str) -> float:
        """CPU per token of one role [us]."""
        return self.by_role.get(role, 0.0) / self.tokens * 1e6


async def streaming_window(served: Served, meters: Path, streams: int, seconds: float) -> Window:
    """Open the streams, let them settle, measure, leave."""
    model = read_architecture(served.setup.model)
    most = model.max_position_embeddings - 64
    tasks = [asyncio.create_task(served.stream(f"{PROMPT} {i}", most)) for i in range(streams)]
    try:
        await _all_running(served, streams)
        await asyncio.sleep(SETTLE_S)
        window = await _measure(served, meters, seconds)
        ended = [task for task in tasks if task.done()]
        if ended:
            raise RuntimeError(f"{len(ended)} streams ended early, after {most} tokens: take shorter windows")
        return window
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(1.0)


async def idle_share(served: Served, seconds: float) -> float:
    """CPU that the system uses without a request [cores]."""
    before = served.cpu()
    await asyncio.sleep(seconds)
    return sum(_minus(served.cpu(), before).values()) / seconds


async def _all_running(served: Served, streams: int) -> None:
    deadline = asyncio.get_running_loop().time() + 30.0
    while True:
        begun = await asyncio.to_thread(served.get, "/metrics")
        counts = [line for line in begun.splitlines() if line.startswith("cloudmatrix:gateway_requests{")]
        if counts and float(counts[0].rpartition(" ")[2]) >= streams:
            return
        if asyncio.get_running_loop().time() > deadline:
            raise RuntimeError(f"not all of {streams} streams run after 30 s: {counts}")
        await asyncio.sleep(0.1)


async def _measure(served: Served, meters: Path, seconds: float) -> Window:
    clock = asyncio.get_running_loop().time
    begun = clock()
    tokens = await asyncio.to_thread(served.streamed_tokens)
    cpu, executor = served.cpu(), _executor_s(meters)
    await asyncio.sleep(seconds)
    tokens = await asyncio.to_thread(served.streamed_tokens) - tokens
    return Window(clock() - begun, tokens, _minus(served.cpu(), cpu), _executor_s(meters) - executor)


def _executor_s(meters: Path) -> float:
    return sum(meter.cpu_s for meter in read_meters(meters))


def _minus(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {role: used - before.get(role, 0.0) for role, used in after.items()}


async def _line(served: Served, meters: Path, args: "Arguments") -> tuple[list[Window], float]:
    idle = await idle_share(served, args.seconds)
    windows = []
    for _ in range(args.repeats):
        windows.append(await streaming_window(served, meters, args.streams, args.seconds))
        progress(f"{windows[-1].total_us:.0f} us, {windows[-1].tokens / windows[-1].seconds:.0f} tokens/s")
    return windows, idle


@dataclass(frozen=True, slots=True)
class Arguments:
    """How to measure."""

    streams: int
    seconds: float
    repeats: int
    step_ms: float


def measure_line(setup: Setup, args: Arguments, *, paced: bool) -> tuple[list[Window], float]:
    """One system, its windows, and its idle share [cores]."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--meters", folder, *(("--step-ms", str(args.step_ms)) if paced else ())]
        with Served(setup, "tests.benchmarks.paced_serve", arguments) as served:
            return asyncio.run(_line(served, Path(folder), args))


def figures_of(name: str, windows: Sequence[Window], idle: float, *, paced: bool) -> list[Figure]:
    """Rows of one line: total, parts by role, and what the goal is about."""
    rate = [w.tokens / w.seconds for w in windows]
    found = [Figure(f"{name}: tokens/s", "tokens/s", tuple(rate))]
    total = tuple(w.total_us for w in windows)
    if paced:
        found.append(Figure(f"{name}: all processes", "us/token", total, goal=GOAL_US))
    else:
        found.append(Figure(f"{name}: all processes, computing included", "us/token", total))
        serving = tuple(w.serving_us for w in windows)
        found.append(Figure(f"{name}: all processes, without computing", "us/token", serving, goal=GOAL_US))
        computing = tuple(w.executor_s / w.tokens * 1e6 for w in windows)
        found.append(Figure(f"{name}:   the executor's calls", "us/token", computing))
    for role in sorted({role for w in windows for role in w.by_role}):
        found.append(Figure(f"{name}:   {role}", "us/token", tuple(w.role_us(role) for w in windows)))
    found.append(Figure(f"{name}: the same system idle, at this rate", "us/token", tuple(idle / r * 1e6 for r in rate)))
    return found


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_cpu_per_token", __doc__, repeats=3)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a window")
    parser.add_argument("--step-ms", type=float, default=50.0, help="paced line: duration of a decode step")
    parser.add_argument("--lines", nargs="*", choices=("paced", "model"), default=["paced", "model"])
    options = parser.parse_args()
    args = Arguments(options.streams, options.seconds, options.repeats, options.step_ms)
    with checkpoint(options.model) as model:
        found = conditions(
            model,
            dtype="float32",
            threads_per_instance=1,
            streams=args.streams,
            window_s=args.seconds,
            step_ms=args.step_ms,
            server="uvicorn",
            mode="disaggregated",
        )
        show_conditions(found)
        figures: list[Figure] = []
        for line in options.lines:
            windows, idle = measure_line(Setup(model, threads=1), args, paced=line == "paced")
            figures += figures_of(line, windows, idle, paced=line == "paced")
        report("bench_cpu_per_token", found, figures)


if __name__ == "__main__":
    main()
