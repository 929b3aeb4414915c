"""Start: from `cloudmatrix serve` to the first streamed token of a request.

What a person waits for after `make serve` with everything installed: interpreter, Ray, the pools, loading the model,
and the first answer. A client asks again and again from the start on, until its request is accepted; the clock stops at
the first token. Goal: 25 s on two cores.
"""

import asyncio
import time

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

GOAL_S = 25.0
ASK_EVERY_S = 0.1


async def first_token_s(served: Served) -> tuple[float, float]:
    """Start the system and ask until there is an answer.

    Returns: seconds from the start to the first token, and how many of them after the request was sent.
    Raises: RuntimeError if the server ends.
    """
    served.start()
    while True:
        await asyncio.sleep(ASK_EVERY_S)
        served.require_running()
        try:
            record = await served.stream("Once upon a time", 8, return_token_ids=True)
        except OSError:
            continue
        if record.status == 200 and record.first_at is not None:
            return record.first_at - served.started_at, record.ttft_s


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_startup", __doc__, repeats=3)
    parser.add_argument("--mode", choices=("disaggregated", "aggregated"), default="disaggregated")
    args = parser.parse_args()
    with checkpoint(args.model) as model:
        found = conditions(model, dtype="float32", threads_per_instance="as shipped", mode=args.mode)
        show_conditions(found)
        starts, first, ends = [], [], []
        for repeat in range(args.repeats):
            served = Served(Setup(model, mode=args.mode))
            try:
                start_s, ttft_s = asyncio.run(first_token_s(served))
            finally:
                begun = time.perf_counter()
                served.stop()
            starts.append(start_s)
            first.append(ttft_s * 1e3)
            ends.append(time.perf_counter() - begun)
            progress(f"start {repeat + 1}: {start_s:.1f} s")
        figures = [
            Figure("start to first token", "s", tuple(starts), goal=GOAL_S),
            Figure("of it: the request itself", "ms", tuple(first)),
            Figure("Ctrl-C to all gone", "s", tuple(ends)),
        ]
        report("bench_startup", found, figures)


if __name__ == "__main__":
    main()
