"""What the SSD tier, prefetch and order by job earn on recorded agents, in virtual time.

Conversations of a trace in a closed loop: a turn starts its recorded pause after the one before it. The pool's memory
holds a third of the contexts that are open at a time, its SSD tier four times as much. Lengths are halved, so that
nearly every prompt fits the model. Printed for each way: TTFT after pauses of 20 to 60 s, for the first part with
memory for everything ("warm") beside it; for the second, the time of whole jobs, and of it the time without pauses.

  python -m tests.benchmarks.bench_agent_pool --trace agent_weka.jsonl
  python -m tests.benchmarks.bench_agent_pool --trace agent_weka.jsonl load --agents 48

The mode `load` repeats the second part with other numbers of agents, and adds learned tool pauses and the bound: all
prompts cached in memory, and 16 prefill instances, so that nothing waits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from serving.config.gateway import Order, ToolPauses
from serving.config.load import load_config
from serving.config.serve import ServeConfig
from serving.virtual.simulation import cost_model, simulate
from serving.virtual.workload.open import open_workload
from tests.benchmarks.conditions import ROOT, Figure, conditions, make_parser, report, show_conditions

CONFIG = ROOT / "deploy" / "cloudmatrix384.toml"
CONTEXT_TOKENS = 95_000
"""Median context of the trace."""
LENGTH = 0.5
MODES = ("parts", "load")
SERVERS = 4
SSD_GB_PER_S = 5.0
"""A local NVMe disk for each memory server."""


@dataclass(frozen=True, slots=True)
class Way:
    """One configuration. `memory`, `ssd`: as shares of the open contexts."""

    name: str
    memory: float = 1 / 3
    ssd: float = 0.0
    prefetch: float = 0.0
    write_through: bool = False
    order: Order = "arrival"
    pauses: ToolPauses = "off"


WARM = Way("warm", memory=6.0)
LRU = Way("LRU")
SSD = Way("LRU + SSD", ssd=4 / 3)
PREFETCH = Way("LRU + SSD + prefetch", ssd=4 / 3, prefetch=0.1)
THROUGH = Way("LRU + SSD + prefetch + write_through", ssd=4 / 3, prefetch=0.1, write_through=True)
JOBS = Way("LRU + SSD + prefetch + job order", ssd=4 / 3, prefetch=0.1, order="job")

PAUSES = Way("LRU + SSD + prefetch + tool pauses", ssd=4 / 3, prefetch=0.1, pauses="act")
ALL = Way("LRU + SSD + prefetch + job order + tool pauses", ssd=4 / 3, prefetch=0.1, order="job", pauses="act")


def system(way: Way, conversations: int, prefills: int) -> ServeConfig:
    """A small part of the supernode, with a pool of this size."""
    shipped = load_config(CONFIG)
    mib = conversations * CONTEXT_TOKENS * LENGTH * cost_model(shipped).shape.kv_token_bytes() / 2**20 / SERVERS
    pool = replace(
        shipped.kvcache,
        replicas=SERVERS,
        ub_memory_mib=round(mib * way.memory),
        ssd_mib=round(mib * way.ssd),
        prefetch_share=way.prefetch,
        write_through=way.write_through,
        store_decoded="always",
    )
    return replace(
        shipped,
        kvcache=pool,
        prefill=replace(shipped.prefill, replicas=prefills),
        decode=replace(shipped.decode, npus_per_instance=32),
        engine=replace(shipped.engine, max_model_len=262_144),
        gateway=replace(
            shipped.gateway,
            order=way.order,
            tool_pauses=way.pauses,
            request_timeout_s=3000.0,
            max_running_sequences=256,
        ),
        simulation=replace(shipped.simulation, ssd_gb_per_s=SSD_GB_PER_S),
    )


def played(way: Way, trace: Path, jobs: int, conversations: int, prefills: int) -> list[Figure]:
    """One run of the trace."""
    stream = open_workload(trace, limit=jobs, length=LENGTH).closed(conversations)
    rows = simulate(system(way, conversations, prefills), stream).requests
    arrival, finish = np.array(rows.arrival_s), np.array(rows.finish_s)
    ttft, pause, job = np.array(rows.first_token_s) - arrival, np.array(rows.pause_s), np.array(rows.job)
    rested = ttft[(pause >= 20) & (pause <= 60)]
    finished = ~np.isnan(finish)  # some prompts are longer than the model's context
    numbers = np.unique(job[finished])
    whole = [float(np.nanmax(finish[job == one]) - np.min(arrival[job == one])) for one in numbers]
    served = [float(np.nansum(finish[job == one] - arrival[job == one])) for one in numbers]
    computed = sum(rows.prompt_tokens) - sum(rows.cached_tokens)
    name = f"{way.name}, {conversations} conversations"
    return [
        *(Figure(f"{name}: TTFT after 20-60 s, p{p}", "s", (_quantile(rested, p),)) for p in (50, 95)),
        Figure(f"{name}: TTFT of all, p95", "s", (_quantile(ttft, 95),)),
        *(Figure(f"{name}: whole job, p{p}", "s", (_quantile(whole, p),)) for p in (50, 95)),
        *(Figure(f"{name}: job without pauses, p{p}", "s", (_quantile(served, p),)) for p in (50, 95)),
        Figure(f"{name}: prompt tokens computed", "million", (computed / 1e6,)),
        Figure(f"{name}: requests refused or not finished", "%", (100 * float(1 - np.mean(finished)),)),
    ]


def _quantile(values: Sequence[float] | npt.NDArray[np.float64], p: int) -> float:
    return float(np.nanpercentile(np.asarray(values, float), p))


def main() -> int:
    """Measure and print."""
    parser = make_parser("bench_agent_pool", __doc__, 1, MODES)
    parser.add_argument("--trace", type=Path, metavar="FILE", help="conversations of agents")
    parser.add_argument("--jobs", type=int, default=60, metavar="N", help="conversations played (default: 60)")
    parser.add_argument("--agents", type=int, nargs="+", default=[16, 32], metavar="N", help="at a time, of `load`")
    arguments = parser.parse_args()
    if arguments.trace is None:
        print("not measured: give it --trace, a recording of agents' conversations")
        return 0
    found = conditions(None, trace=arguments.trace.name, config=CONFIG.name, jobs=arguments.jobs)
    show_conditions(found)
    figures: list[Figure] = []
    parts = [(way, 24, 2) for way in (WARM, LRU, SSD, PREFETCH, THROUGH)]
    parts += [(way, agents, 1) for way, agents in ((LRU, 16), (LRU, 32), (PREFETCH, 32), (JOBS, 32))]
    load = [
        (way, agents, 16 if way is WARM else 1)
        for agents in arguments.agents
        for way in (LRU, PREFETCH, JOBS, PAUSES, ALL, WARM)
    ]
    chosen = arguments.modes or MODES
    for way, agents, prefills in [*(parts if "parts" in chosen else ()), *(load if "load" in chosen else ())]:
        figures += played(way, arguments.trace, arguments.jobs, agents, prefills)
    report("agent pool", found, figures)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
