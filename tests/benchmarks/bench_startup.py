"""Time until a system serves, and its processor time without requests, in six modes, with the model's defaults:

start   from `cloudmatrix serve` to the first streamed token of a request: interpreter, Ray, pools, weights. A client
        retries from the start on until its request is accepted. Goal: 12 s on two cores. The figures below it say where
        the time goes: the phases that the program prints, and the CPU time of every process until then
scale   from `cloudmatrix scale decode 3` to links of the gateway to all three instances. Goal: 5 s
add     `cloudmatrix scale decode 2 --wait`, a whole command. Goal: 3 s
lost    from the SIGKILL of a decode instance until its replacement is linked. No goal
zero    all pools asleep: from sending a request to its first token. Goal: 8 s
idle    processor time of each process during a minute, from a minute after the start. Goal: 15 % of a core in all, 4 %
        for processes that run our code; each of these contains Ray's own loops, which take about 0.8 %

All but the first have a KV-cache pool, from which new instances map their weights.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from serving.client.pools_client import PoolsClient
from serving.values.scaling_operations import ScalePool
from tests.benchmarks.conditions import (
    ROOT,
    Figure,
    checkpoint,
    conditions,
    make_parser,
    progress,
    report,
    show_conditions,
)
from tests.benchmarks.processes import OF_RAY
from tests.benchmarks.served import Served, Setup
from tests.e2e.server import wait_for

RETRY_S = 0.1
REST_S = 3.0
"""Pause between two repeats: stopped processes must have ended before the next start is timed."""
ASLEEP = """
[autoscaler]
policy = "slo"
min_prefill = 0
min_decode = 0
idle_to_zero_s = 2.0
hold_s = 2.0
"""


IDLE_S = 60.0
"""Time from the start to the first measurement, and length of each."""


PHASES = {
    "checks and imports": "cloudmatrix: checks",
    "Ray": "cloudmatrix: Ray",
    "KV-cache pool": "cloudmatrix: KV-cache pool",
    "weights": "cloudmatrix: weights",
    "gateway": "ready after",
}
"""Phases of a start, each with the line that the program prints at its end."""


async def first_token_s(served: Served, ends: dict[str, float]) -> float:
    """Start the system and retry until a request gets a token; seconds from the start.

    Effects: adds the time at which each phase ended [s].
    """
    served.launch()
    while True:
        await asyncio.sleep(RETRY_S)
        served.require_running()
        for phase, line in PHASES.items():
            if phase not in ends and line in served.out:
                ends[phase] = time.perf_counter() - served.started_at
        try:
            record = await served.stream("Once upon a time", 8, return_token_ids=True)
        except OSError:
            continue
        if record.status == 200 and record.first_at is not None:
            return record.first_at - served.started_at


def start(model: Path, repeats: int) -> list[Figure]:
    """Whole starts and ends."""
    starts, ends, parts = [], [], defaultdict[str, list[float]](list)
    for repeat in range(repeats):
        served, phases = Served(Setup(model)), dict[str, float]()
        try:
            starts.append(asyncio.run(first_token_s(served, phases)))
            for name, seconds in served.cpu().items():
                parts[f"CPU until then: {name}"].append(seconds)
            served.wait_ready()
            ends.append(served.interrupt())
        finally:
            served.end()
        begun = 0.0
        for phase, at in phases.items():
            parts[f"phase: {phase}"].append(at - begun)
            begun = at
        progress(f"start {repeat + 1}: {starts[-1]:.1f} s")
    figures = [Figure("start to first token", "s", tuple(starts), goal=12.0)]
    figures += [Figure(name, "s", tuple(parts[name])) for name in sorted(parts, reverse=True)]
    return [*figures, Figure("Ctrl-C to the end of every process", "s", tuple(ends))]


def scale(model: Path, repeats: int) -> list[Figure]:
    """Decode from one to three instances and back, repeatedly."""
    took = []
    with Served(Setup(model, memory_servers=1, npus=16)) as served:
        pools = client_of(served)
        pools.state()  # the dashboard connects to Ray at the first request
        for _ in range(repeats):
            begun = time.perf_counter()
            pools.scale(ScalePool("decode", 3, 0.0, "cli"))
            wait_for(lambda: len(served.replicas("decode")) == 3, "three decode instances", pause_s=0.02)
            took.append(time.perf_counter() - begun)
            progress(f"1 -> 3: {took[-1]:.2f} s")
            pools.scale(ScalePool("decode", 1, 0.0, "cli"))
            wait_for(lambda: settled(pools, "decode", 1), "one decode instance")
            time.sleep(REST_S)
    return [Figure("decode 1 -> 3: request to serving", "s", tuple(took), goal=5.0)]


def add(model: Path, repeats: int) -> list[Figure]:
    """A second decode instance by the command, and away again."""
    took = []
    with Served(Setup(model, memory_servers=1, npus=16)) as served:
        pools = client_of(served)
        command = [sys.executable, "-m", "serving.cli", "scale", "decode"]
        place = ["--dashboard", pools.url, "--token", pools.token]
        for _ in range(repeats):
            begun = time.perf_counter()
            subprocess.run([*command, "2", "--wait", *place], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
            took.append(time.perf_counter() - begun)
            progress(f"1 -> 2: {took[-1]:.2f} s")
            pools.scale(ScalePool("decode", 1, 0.0, "cli"))
            wait_for(lambda: settled(pools, "decode", 1), "one decode instance")
            time.sleep(REST_S)
    return [Figure("scale decode 2 --wait", "s", tuple(took), goal=3.0)]


def lost(model: Path, repeats: int) -> list[Figure]:
    """A killed decode instance and its replacement."""
    took = []
    with Served(Setup(model, memory_servers=1, npus=16)) as served:
        for _ in range(repeats):
            victim = next(one for one in served.replicas("decode") if one["state"] == "serving")
            begun = time.perf_counter()
            os.kill(victim["pid"], signal.SIGKILL)
            wait_for(partial(replaced, served, victim["replica"]), "another decode instance", pause_s=0.02)
            took.append(time.perf_counter() - begun)
            progress(f"replaced after {took[-1]:.2f} s")
            time.sleep(REST_S)
    return [Figure("decode killed: until its replacement serves", "s", tuple(took))]


def zero(model: Path, repeats: int) -> list[Figure]:
    """A request to a sleeping system, which then falls asleep again."""
    took = []
    with Served(Setup(model, memory_servers=1, prefills=0, decodes=0, npus=16, sections=ASLEEP)) as served:
        pools = client_of(served)
        for _ in range(repeats):
            wait_for(lambda: settled(pools, "prefill", 0) and settled(pools, "decode", 0), "pools at zero")
            time.sleep(REST_S)
            took.append(asyncio.run(served.stream("Once upon a time", 8, return_token_ids=True)).ttft_s)
            progress(f"from zero: {took[-1]:.2f} s")
    return [Figure("from zero: request to first token", "s", tuple(took), goal=8.0)]


def idle(model: Path, repeats: int) -> list[Figure]:
    """Processor time without requests, by role [% of a core]."""
    shares = defaultdict[str, list[float]](list)
    with Served(Setup(model, memory_servers=1)) as served:
        time.sleep(IDLE_S)
        for _ in range(repeats):
            before, begun = served.cpu(), time.perf_counter()
            time.sleep(IDLE_S)
            used, elapsed = served.cpu(), time.perf_counter() - begun
            for role, seconds in used.items():
                shares[role].append(100 * (seconds - before.get(role, 0.0)) / elapsed)
            progress(f"idle: {sum(one[-1] for one in shares.values()):.1f} % of a core")
    ours = [values for role, values in shares.items() if role not in OF_RAY]
    totals = [
        Figure("idle: all", "% of a core", _sums(shares.values()), goal=15.0),
        Figure("idle: processes that run our code", "% of a core", _sums(ours), goal=4.0),
    ]
    return totals + [Figure(f"idle: {role}", "% of a core", tuple(shares[role])) for role in sorted(shares)]


def _sums(columns: Iterable[Sequence[float]]) -> tuple[float, ...]:
    return tuple(map(sum, zip(*columns, strict=True)))


def client_of(served: Served) -> PoolsClient:
    """The dashboard's client of the pools."""
    return PoolsClient(served.printed("Ray dashboard"), served.printed("dashboard token"))


def replaced(served: Served, name: str) -> bool:
    """Whether a decode instance other than this one serves; a dead one may still be listed."""
    return any(one["state"] == "serving" and one["replica"] != name for one in served.replicas("decode"))


def settled(pools: PoolsClient, pool: str, replicas: int) -> bool:
    """Whether this many replicas serve, and none starts or drains."""
    row = next(one for one in pools.state()["pools"] if one["pool"] == pool)
    return (row["running"], row["starting"], row["draining"]) == (replicas, 0, 0)


MODES = {"start": start, "scale": scale, "add": add, "lost": lost, "zero": zero, "idle": idle}


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_startup", __doc__, 3, MODES)
    args = parser.parse_args()
    with checkpoint(args.model) as model:
        found = conditions(model, dtype="float32", threads_per_instance="as shipped")
        show_conditions(found)
        figures = [figure for mode in args.modes or MODES for figure in MODES[mode](model, args.repeats)]
        report("bench_startup", found, figures)


if __name__ == "__main__":
    main()
