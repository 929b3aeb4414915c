"""Agreement of the live simulated system and virtual time on the same requests.

Starts `cloudmatrix serve` with the shipped simulated supernode at a time scale that this machine can sustain, replays a
synthetic trace against its endpoint with the load generator, open loop, and plays the same trace with the same
configuration in virtual time. Live times count from the scheduled arrival and are multiplied by the time scale.

The machine's own time for a request (HTTP, JSON, hops between processes) is not part of the simulated system; it
is measured first, on the idle system, and set as `gateway_s` in virtual time. Nothing else is fitted.

  python -m tests.benchmarks.bench_live_agreement
  python -m tests.benchmarks.bench_live_agreement --burstiness 0.1          (prefill queues)

Exits with 1 if a median is more than 5 % or a p99 more than 15 % off.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from serving.config.load import load_config
from serving.config.serve import ServeConfig
from serving.virtual.simulation import cost_model, simulate
from serving.virtual.workload.open import open_workload
from tests.benchmarks.conditions import Figure, conditions, make_parser, progress, report, show_conditions
from tests.benchmarks.live_agreement.live import live_setup, real_overhead_s, replay, warm_up
from tests.benchmarks.live_agreement.outcome import Row, compare
from tests.benchmarks.live_agreement.trace import Shape, write_made
from tests.benchmarks.served import Served


def virtual_rows(config: ServeConfig, trace: Path) -> list[Row]:
    """The trace in virtual time."""
    columns = simulate(config, open_workload(trace), check=True).requests
    rows = []
    for row, arrival in enumerate(columns.arrival_s):
        first, last = columns.first_token_s[row] - arrival, columns.finish_s[row] - arrival
        if not last >= first:
            raise RuntimeError(f"request {row} did not finish in virtual time")
        rows.append(Row.of(first, last, columns.output_tokens[row], columns.cached_tokens[row]))
    return rows


def late_steps(served: Served) -> tuple[int, int]:
    """Number of steps that exceeded their time, and of all steps."""
    replicas = [replica for pool in served.cluster()["pools"] for replica in pool["replicas"]]
    return tuple(sum(one[name] or 0 for one in replicas) for name in ("late_steps_total", "steps_total"))  # type: ignore[return-value] # a pair


def run(options: argparse.Namespace, folder: Path) -> Sequence[Figure]:
    """Run both sides."""
    trace, scale = folder / "trace.jsonl", options.time_scale
    shape = Shape(options.requests, options.rate, 16_384, 256, options.seed, options.burstiness)
    write_made(trace, shape)
    setup = live_setup(scale, options.prefills)
    (folder / "live.toml").write_text(setup.toml())
    config = load_config(folder / "live.toml")
    progress("starting the live system")
    with Served(setup) as served:
        warm_up(served.url, folder / "warm-up")
        dies = config.prefill.dies_per_instance
        overhead_s = real_overhead_s(served.url, folder / "probe", cost_model(config), dies, scale)
        before = late_steps(served)
        progress(f"replaying: about {options.requests / options.rate / scale:.0f} s")
        live, verdict = replay(served.url, folder / "replay", trace, options.requests, scale)
        late, steps = (after - old for after, old in zip(late_steps(served), before, strict=True))
        served.interrupt()
        if left := served.segments():
            raise RuntimeError(f"the server left shared memory behind: {left}")
    progress(f"the load generator says of itself: {verdict}")
    simulation = replace(config.simulation, gateway_s=max(0.0, overhead_s * scale))
    virtual = virtual_rows(replace(config, simulation=simulation), trace)
    own = [Figure("the machine's own time for a request", "ms real", (overhead_s * 1e3,))]
    return [*compare(live, virtual), *own, Figure("late steps", "%", (100 * late / max(1, steps),))]


def main() -> int:
    """Compare once."""
    parser = make_parser("bench_live_agreement", __doc__, 1)
    parser.add_argument("--requests", type=int, default=2500, metavar="N", help="default 2500")
    parser.add_argument("--rate", type=float, default=50.0, metavar="R", help="per second, virtual time (default 50)")
    parser.add_argument("--time-scale", type=float, default=0.2, metavar="X", help="default 0.2")
    parser.add_argument("--prefills", type=int, default=0, metavar="N", help="prefill instances (default: as shipped)")
    parser.add_argument(
        "--burstiness", type=float, default=1.0, metavar="X", help="of gaps: 1 = Poisson, less = bursts"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    options = parser.parse_args()
    found = conditions(None, **{name: value for name, value in vars(options).items() if value is not None})
    show_conditions(found)
    with tempfile.TemporaryDirectory() as folder:
        figures = run(options, Path(folder))
    report("bench_live_agreement", found, figures)
    return 1 if any(figure.met is False for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
