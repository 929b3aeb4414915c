"""Scaling: how long it takes from a wish until instances serve, and from nothing to a first token.

    1 -> 3     `cloudmatrix scale decode 3`, timed from the question until the gateway has links to all three
    from zero  all pools asleep; timed from sending a request to its first token

Both with a KV-cache pool, from which new instances map their weights. Goals on two cores: 5 s and 8 s.
"""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from serving.client.pools_client import PoolsClient
from serving.values.scaling import ScalePool
from tests.benchmarks.conditions import Figure, checkpoint, conditions, make_parser, progress, report, show_conditions
from tests.benchmarks.served import Served, Setup

GOAL_SCALE_S = 5.0
GOAL_ZERO_S = 8.0
PATIENCE_S = 120.0
POLL_S = 0.02
REST_S = 3.0
"""Between two repeats: what was stopped must have ended before the next start is timed."""
ASLEEP = """
[autoscaler]
policy = "slo"
min_prefill = 0
min_decode = 0
idle_to_zero_s = 2.0
hold_s = 2.0
"""


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_scaling", __doc__, repeats=5)
    args = parser.parse_args()
    with checkpoint(args.model) as model:
        found = conditions(model, dtype="float32", threads_per_instance="as shipped")
        show_conditions(found)
        asked, up = scale_up(Setup(model, memory_servers=1, npus=16), args.repeats)
        woken = from_zero(Setup(model, memory_servers=1, prefills=0, decodes=0, npus=16, sections=ASLEEP), args.repeats)
        figures = [
            Figure("decode 1 -> 3: asked to serving", "s", tuple(up), goal=GOAL_SCALE_S),
            Figure("of it: the question itself", "ms", tuple(asked)),
            Figure("from zero: request to first token", "s", tuple(woken), goal=GOAL_ZERO_S),
        ]
        report("bench_scaling", found, figures)


def scale_up(setup: Setup, repeats: int) -> tuple[list[float], list[float]]:
    """Scale decode from one to three instances and back, again and again.

    Returns: how long each question took [ms], and until all three served [s].
    """
    asked, up = [], []
    with Served(setup) as served:
        pools = client_of(served)
        pools.state()  # the dashboard connects to Ray when it is first asked
        for repeat in range(repeats):
            begun = time.perf_counter()
            pools.scale(ScalePool("decode", 3, 0.0, "cli"))
            asked.append((time.perf_counter() - begun) * 1e3)
            wait(lambda: listed(served, "decode") == 3)
            up.append(time.perf_counter() - begun)
            progress(f"1 -> 3, {repeat + 1}: {up[-1]:.2f} s")
            pools.scale(ScalePool("decode", 1, 0.0, "cli"))
            wait(lambda: settled(pools, "decode", 1))
            time.sleep(REST_S)
    return asked, up


def from_zero(setup: Setup, repeats: int) -> list[float]:
    """Ask a sleeping system, and let it fall asleep again.

    Returns: seconds to each first token.
    """
    took = []
    with Served(setup) as served:
        pools = client_of(served)
        for repeat in range(repeats):
            wait(lambda: settled(pools, "prefill", 0) and settled(pools, "decode", 0))
            time.sleep(REST_S)
            record = asyncio.run(served.stream("Once upon a time", 8, return_token_ids=True))
            if record.status != 200:
                raise RuntimeError(f"a request from zero was answered with {record.status}")
            took.append(record.ttft_s)
            progress(f"from zero, {repeat + 1}: {took[-1]:.2f} s")
    return took


def client_of(served: Served) -> PoolsClient:
    """The way to its pools."""
    return PoolsClient(served.printed("Ray dashboard"), served.printed("dashboard token"))


def listed(served: Served, pool: str) -> int:
    """Instances that the gateway knows."""
    status: dict[str, Any] = json.loads(served.get("/cluster"))
    return next(len(one["replicas"]) for one in status["pools"] if one["name"] == pool)


def settled(pools: PoolsClient, pool: str, replicas: int) -> bool:
    """Whether so many replicas serve, and none comes or goes."""
    row = next(one for one in pools.state()["pools"] if one["pool"] == pool)
    return (row["running"], row["starting"], row["draining"]) == (replicas, 0, 0)


def wait(condition: Callable[[], bool]) -> None:
    """Wait until it is so.

    Raises: RuntimeError when it takes too long.
    """
    end = time.perf_counter() + PATIENCE_S
    while not condition():
        if time.perf_counter() > end:
            raise RuntimeError(f"still not so after {PATIENCE_S:.0f} s")
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
