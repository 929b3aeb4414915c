"""Do the live simulated system and virtual time tell the same story of the same requests?

Starts `cloudmatrix serve` with the shipped simulated supernode at a time scale that this machine can hold, replays a
trace against its endpoint with the load generator, open loop, and plays the same trace with the same configuration in
virtual time. Live times count from the scheduled arrival and are multiplied by the time scale.

What the machine itself takes for a request (HTTP, JSON, hops between processes) is no part of the simulated system; it
is measured first, on the idle system, and virtual time is told it as `gateway_s`. Nothing else is fitted.

  python -m tests.benchmarks.bench_live_agreement
  python -m tests.benchmarks.bench_live_agreement --burstiness 0.1          (prefill queues)
  python -m tests.benchmarks.bench_live_agreement --time-scale 0.1 --trace conversation_trace.jsonl

Ends with 1 if a median is more than 5 % or a p99 more than 15 % off.
"""

import argparse
import json
import os
import pickle
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from serving.config.load import load_config
from serving.config.serve import ServeConfig
from serving.virtual.run import cost_model, simulate
from serving.virtual.workload.open import open_workload
from tests.benchmarks.conditions import conditions, progress, show_conditions
from tests.benchmarks.live_agreement.live import (
    Replayed,
    late_steps,
    live_setup,
    real_overhead_s,
    replay,
    warm_up,
)
from tests.benchmarks.live_agreement.outcome import Compared, Row, compare
from tests.benchmarks.live_agreement.trace import Shape, write_cut, write_made
from tests.benchmarks.served import Served

SHARED_MEMORY = Path("/dev/shm")
SEGMENTS = "cloudmatrix-ub-*"


def virtual_rows(config: ServeConfig, trace: Path) -> list[Row]:
    """The trace in virtual time.

    Raises: RuntimeError if a request did not finish.
    """
    columns = simulate(config, open_workload(trace), check=True).requests
    rows = []
    for row, arrival in enumerate(columns.arrival_s):
        first, last = columns.first_token_s[row] - arrival, columns.finish_s[row] - arrival
        tokens = columns.output_tokens[row]
        if not last >= first:
            raise RuntimeError(f"request {row} did not finish in virtual time")
        pace = (last - first) / (tokens - 1) if tokens > 1 else 0.0
        rows.append(Row(first, pace, last, tokens, columns.cached_tokens[row]))
    return rows


def run(options: argparse.Namespace, folder: Path) -> int:
    """Both sides, one table.

    Returns: exit status.
    Raises: RuntimeError if a request failed, or the server left something behind.
    """
    trace = folder / "trace.jsonl"
    shape = Shape(
        options.requests, options.rate, options.most_prompt, options.most_answer, options.seed, options.burstiness
    )
    if options.trace:
        write_cut(trace, options.trace, shape)
    else:
        write_made(trace, shape)
    setup = live_setup(options.time_scale, options.prefills)
    progress("starting the live system")
    segments = set(SHARED_MEMORY.glob(SEGMENTS))
    with Served(setup) as served:
        config = _read_config(setup.toml(served.port), folder)
        cost = cost_model(config)
        warm_up(served.port, folder / "warm-up")
        overhead_s = real_overhead_s(
            served.port, folder / "probe", cost, config.prefill.dies_per_instance, options.time_scale, 4000
        )
        before = late_steps(served)
        progress(f"replaying: about {options.requests / options.rate / options.time_scale:.0f} s")
        live = replay(served.port, folder / "replay", trace, options.requests, options.time_scale)
        after = late_steps(served)
    left = set(SHARED_MEMORY.glob(SEGMENTS)) - segments
    if left:
        raise RuntimeError(f"the server left shared memory behind: {sorted(map(str, left))}")
    gateway_s = max(0.0, overhead_s * options.time_scale)
    config = replace(config, simulation=replace(config.simulation, gateway_s=gateway_s))
    late = (after[0] - before[0], after[1] - before[1])
    if options.keep:
        options.keep.write_bytes(pickle.dumps((setup, trace.read_text(), live, overhead_s, late)))
    virtual = virtual_rows(config, trace)
    return _report(options, live, virtual, overhead_s, late)


def _read_config(text: str, folder: Path) -> ServeConfig:
    path = folder / "live.toml"
    path.write_text(text)
    return load_config(path)


def _report(
    options: argparse.Namespace, live: Replayed, virtual: Sequence[Row], overhead_s: float, late: tuple[int, int]
) -> int:
    compared = compare(live.rows, virtual)
    print(f"  {'':<10}{'live ms':>10}{'sim. ms':>10}{'ratio':>8}")
    for one in compared:
        print(one.line())
    cached = [sum(row.cached_tokens for row in rows) for rows in (live.rows, virtual)]
    print(f"  cached tokens: live {cached[0]:,}, virtual {cached[1]:,}, ratio {cached[0] / max(1, cached[1]):.3f}")
    print(f"  the machine's own time for a request: {overhead_s * 1e3:.1f} ms real")
    print(f"  late steps: {late[0]} of {late[1]}; load average {os.getloadavg()[0]:.1f}")
    print(f"  the load generator sent at most {live.late_s * 1e3:.1f} ms late (p99, real); it says: {live.verdict}")
    print(json.dumps(_plain(options, compared, cached, overhead_s, late)), flush=True)
    return 0 if all(one.agrees for one in compared) else 1


def _plain(
    options: argparse.Namespace, compared: Sequence[Compared], cached: list[int], overhead_s: float, late: Sequence[int]
) -> dict[str, Any]:
    figures = {f"{one.metric} {one.statistic}": [one.live_s, one.virtual_s, one.ratio] for one in compared}
    return {
        "benchmark": "bench_live_agreement",
        "time_scale": options.time_scale,
        "figures": figures,
        "cached_tokens": cached,
        "overhead_s": overhead_s,
        "late_steps": list(late),
    }


def main() -> int:
    """Compare once."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.bench_live_agreement",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--requests", type=int, default=2500, metavar="N", help="default 2500")
    parser.add_argument("--rate", type=float, default=50.0, metavar="R", help="a second, virtual time (default 50)")
    parser.add_argument("--time-scale", type=float, default=0.2, metavar="X", help="default 0.2")
    parser.add_argument("--prefills", type=int, default=0, metavar="N", help="prefill instances (default: as shipped)")
    parser.add_argument(
        "--burstiness", type=float, default=1.0, metavar="X", help="of gaps: 1 = Poisson, less = bursts"
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="Mooncake trace to cut to size (default: made up)")
    parser.add_argument("--most-prompt", type=int, default=16_384, metavar="N", help="prompt tokens (default 16384)")
    parser.add_argument("--most-answer", type=int, default=256, metavar="N", help="answer tokens (default 256)")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="keep both sides' rows for a closer look")
    options = parser.parse_args()
    show_conditions(conditions(None, **{name: value for name, value in vars(options).items() if value is not None}))
    with tempfile.TemporaryDirectory() as folder:
        return run(options, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
