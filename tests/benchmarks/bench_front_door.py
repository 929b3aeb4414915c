"""The front door: uvicorn inside the ingress replica against Ray Serve's HTTP proxy.

The same system twice, with `[gateway] server = "uvicorn"` and `"serve"`, started in turns. Instances are paced (50 ms
per decode step, 2 ms per prefill step, nothing computed), so that the difference is the door alone: CPU of all
processes per streamed token at 64 streams, and TTFT of one client on the otherwise idle system. The default of
`[gateway] server` is chosen by this.
"""

import asyncio
import statistics
import tempfile
from pathlib import Path

from tests.benchmarks.bench_cpu_per_token import streaming_window
from tests.benchmarks.conditions import (
    Figure,
    checkpoint,
    conditions,
    make_parser,
    progress,
    report,
    show_conditions,
)
from tests.benchmarks.served import Served, Setup

DOORS = ("uvicorn", "serve")
REQUESTS = 30


async def ttft_ms(served: Served, seed: int) -> float:
    """Median TTFT of one client [ms]; the first five requests warm up."""
    times = []
    for i in range(REQUESTS + 5):
        record = await served.stream(f"{seed} {i}: once upon a time", 3, return_token_ids=True)
        times.append(record.ttft_s * 1e3)
    return statistics.median(times[5:])


async def through(served: Served, meters: Path, streams: int, seconds: float) -> tuple[float, float, float]:
    """TTFT [ms], CPU per token [us], tokens per second."""
    first = await ttft_ms(served, 1)
    window = await streaming_window(served, meters, streams, seconds)
    return first, window.total_us, window.tokens / window.seconds


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_front_door", __doc__, repeats=2)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a window")
    parser.add_argument("--step-ms", type=float, default=50.0, help="duration of a decode step")
    args = parser.parse_args()
    with checkpoint(args.model) as model:
        found = conditions(
            model, streams=args.streams, window_s=args.seconds, step_ms=args.step_ms, threads_per_instance=1
        )
        show_conditions(found)
        seen: dict[str, list[tuple[float, float, float]]] = {door: [] for door in DOORS}
        for _ in range(args.repeats):
            for door in DOORS:
                with tempfile.TemporaryDirectory() as folder:
                    arguments = ["--meters", folder, "--step-ms", str(args.step_ms)]
                    with Served(Setup(model, server=door, threads=1), "tests.benchmarks.paced_serve", arguments) as it:
                        seen[door].append(asyncio.run(through(it, Path(folder), args.streams, args.seconds)))
                progress(f"{door}: TTFT {seen[door][-1][0]:.1f} ms, {seen[door][-1][1]:.0f} us per token")
        figures = []
        for at, (what, unit) in enumerate((("TTFT", "ms"), ("CPU per token", "us/token"), ("tokens/s", "tokens/s"))):
            figures += [Figure(f"{door}: {what}", unit, tuple(row[at] for row in seen[door])) for door in DOORS]
        report("bench_front_door", found, figures)


if __name__ == "__main__":
    main()
