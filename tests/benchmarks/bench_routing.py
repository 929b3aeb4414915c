"""Routing rules against each other in virtual time: recorded traffic on one supernode, and a sudden burst.

Four gateways, each of which hears from the instances every 0.25 s, as live; twelve prefill instances of 16 NPUs, six
decode instances of 32. Rates are chosen so that prefill is busy most of the time: an idle pool makes every rule look
good. Imbalance is the busiest prefill instance's busy time over the mean, and the same of decoded tokens.

The burst: 200 requests within 2 ms, four gateways, eight prefill instances that nobody hears of meanwhile.
`naive` is the least loaded instance as last reported, without what the gateway itself has sent since.

  python -m tests.benchmarks.bench_routing --traces DIR [--limit REQUESTS]

DIR holds `mooncake/conversation_trace.jsonl` and `azure_llm_2023/*.csv`.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from serving.config.gateway import Routing
from serving.config.load import load_config
from serving.config.serve import ServeConfig
from serving.gateway.core.instances import Instances
from serving.virtual.report.goodput import Slo
from serving.virtual.report.summary import summarize
from serving.virtual.result import SimResult
from serving.virtual.run import simulate
from serving.virtual.workload.open import open_workload
from serving.virtual.workload.request import RequestStream, TraceRequest
from tests.benchmarks.conditions import ROOT, Figure, conditions, make_parser, report, show_conditions

TRACES = (
    ("mooncake", "mooncake/conversation_trace.jsonl", 10.0),
    ("azure conv", "azure_llm_2023/AzureLLMInferenceTrace_conv.csv", 120.0),
    ("azure code", "azure_llm_2023/AzureLLMInferenceTrace_code.csv", 150.0),
)
"""Name, file, and by how much time is compressed."""
BURST, INSTANCES = 200, 8
SLO = Slo(2.0, 0.05)

Rule = Routing | Literal["naive"]


def system(routing: Routing, *, cache: bool = True, period_s: float = 0.25, prefills: int = 12) -> ServeConfig:
    """The supernode with other pools."""
    config = load_config(ROOT / "deploy" / "cloudmatrix384.toml")
    return replace(
        config,
        gateway=replace(config.gateway, routing=routing, replicas=4),
        prefill=replace(config.prefill, replicas=prefills),
        decode=replace(config.decode, replicas=6, npus_per_instance=32, max_sequences=3072, max_step_tokens=32_768),
        kvcache=replace(config.kvcache, replicas=config.kvcache.replicas if cache else 0),
        simulation=replace(config.simulation, status_period_s=period_s),
    )


def imbalance(result: SimResult) -> tuple[float, float]:
    """Of prefill by busy time, of decode by tokens: the largest over the mean."""
    busy = [one.busy_s for one in result.instances if one.pool == "prefill"]
    tokens = [one.output_tokens for one in result.instances if one.pool == "decode"]
    return tuple(max(of) * len(of) / sum(of) for of in (busy, tokens))  # type: ignore[return-value]


def line(result: SimResult, rule: str) -> str:
    """One rule's figures."""
    summary = summarize(result, SLO)
    assert summary.goodput is not None
    prefill, decode = imbalance(result)
    ttft, tpot = summary.ttft_s, summary.tpot_s
    return (
        f"  {rule:<14}{ttft.p50:8.3f}{ttft.p99:9.3f}{tpot.p50 * 1e3:9.1f}{tpot.p99 * 1e3:8.1f}"
        f"{summary.goodput.attainment:10.1%}{prefill:10.2f}{decode:9.2f}{summary.cache.hit_share:8.1%}"
    )


@contextmanager
def without_memory(rule: Rule) -> Iterator[Routing]:
    """For `naive`, gateways that forget at once what they have sent. Yields: what to configure."""
    if rule != "naive":
        yield rule
        return
    remember = Instances.reserve
    Instances.reserve = lambda *_: None  # type: ignore[method-assign]
    try:
        yield "load"
    finally:
        Instances.reserve = remember  # type: ignore[method-assign]


def burst(rule: Rule) -> float:
    """How much the busiest of the prefill instances gets of the burst, over the fair share.

    Some work is there before, a little more on one instance than on another: less than a tenth of the burst.
    """
    before = [TraceRequest(n * 1e-3, 1500 + 700 * (n % 5), 1, ()) for n in range(INSTANCES)]
    later = [TraceRequest(0.06 + n * 1e-5, 1000, 1, ()) for n in range(BURST)]
    with without_memory(rule) as routing:
        config = system(routing, cache=False, period_s=0.05, prefills=INSTANCES)
        result = simulate(config, RequestStream("burst", before + later, count=len(before) + BURST, duration_s=1.0))
    sent = Counter(one.choice for one in result.decisions if one.kind == "route prefill" and one.at_s >= 0.06)
    assert sum(sent.values()) == BURST, "every decision is kept"
    return max(sent.values()) * INSTANCES / BURST


def main() -> int:
    """Measure and print."""
    parser = make_parser("bench_routing", __doc__, 1)
    parser.add_argument("--traces", type=Path, required=True, metavar="DIR", help="folder of the traces")
    parser.add_argument("--limit", type=int, metavar="N", help="requests of each trace at most")
    arguments = parser.parse_args()
    found = conditions(None, traces=[name for name, _, _ in TRACES], limit=arguments.limit)
    show_conditions(found)
    figures = []
    for name, file, rate in TRACES:
        workload = open_workload(arguments.traces / file, rate=rate, limit=arguments.limit)
        print(f"{name}, {rate:g} x its rate")
        print("  rule          TTFT p50      p99 TPOT p50     p99  in time   prefill   decode  cached")
        for rule in get_args(Routing):
            result = simulate(system(rule), workload)
            print(line(result, rule), flush=True)
            figures.append(Figure(f"{name}, {rule}: TTFT p99", "s", (summarize(result).ttft_s.p99,)))
    print(f"burst of {BURST}, four gateways: the fullest of {INSTANCES} instances over the fair share")
    for rule in ("naive", *get_args(Routing)):
        share = burst(rule)
        goal = 1.3 if rule in ("load", "power_of_two") else None
        figures.append(Figure(f"burst, {rule}", "x fair", (share,), goal))
        print(f"  {rule:<14}{share:8.2f}", flush=True)
    report("routing", found, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
