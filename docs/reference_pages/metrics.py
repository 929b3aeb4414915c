"""Every series of `/metrics`, made by having one of each shown."""

import re
from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric

from docs.reference_pages.markdown import literal, made_by_a_script, table
from serving.ids import ReplicaId
from serving.telemetry.group_metrics import GroupStats
from serving.telemetry.handoff_paths import HandoffPath
from serving.telemetry.metrics import GatewayMetrics
from serving.telemetry.namespace_metrics import NamespaceBoard
from serving.telemetry.pool_stats import MemoryServerStats, OperationLatencies, PoolClientStats
from serving.telemetry.stats import ITERATION_TOKEN_BUCKETS, InstanceStats
from serving.values.expert_facts import ExchangeFacts, ExpertFacts
from serving.values.hosts import HostRow
from serving.values.system_tally import StartTimes, SystemTally

HEAD = """`GET /metrics` of the endpoint, in Prometheus' text format; no key is needed. Names that start with `vllm:`
have vLLM's meaning, so its dashboards work. A counter's name ends in `_total` on the page, a histogram
has `_bucket`, `_sum` and `_count`. Every series has the labels `model_name` and `engine` (the gateway's id,
or the replica's), except those of groups of ranks (`model_name` and `group`), of memory servers (`server`)
and of the system as a whole. A gateway's page shows the series of all gateways, and those
of instances once: scrape any one gateway, for example through a Service. A scraper that discovers each gateway,
such as a PodMonitor, requests `/metrics?scope=gateway`: then each gateway shows its own series, one of them also those
of instances, and sums over all pages, such as `sum(vllm:num_requests_running)`, count each series once.

Omitted, because this system has no equivalent: vLLM's `kv_block_lifetime_seconds`,
`kv_block_idle_before_evict_seconds`, `kv_block_reuse_gap_seconds` (vLLM's block pool records times, ours has no clock),
`lora_requests_info`, `engine_sleep_state` and `mm_cache_*`; handoffs are `cloudmatrix:handoff_*`, not `nixl_*`.
With `Accept: application/openmetrics-text` the page is OpenMetrics, and where requests are traced
`vllm:time_to_first_token_seconds` has exemplars: `trace_id` of the latest trace of each bucket. `[cluster] ray_metrics`
exports the series of Ray's board "Serve LLM" on Ray's own ports, see
[the runbook](../../deploy/RUNBOOK.md#looking-inside).

[Ray's documentation](https://docs.ray.io/en/latest/ray-observability/reference/system-metrics.html) lists Ray's own
metrics. `loadgen` measures as a client does: [its table](../../loadgen/README.md)."""
_UNIT = re.compile(r" ?\[(?P<unit>[^]]+)\]$")
_UNITS_BY_NAME = {
    "bytes": "bytes",
    "tokens": "tokens",
    "blocks": "blocks",
    "requests": "requests",
    "npus": "NPUs",
    "perc": "share",
    "weight": "share",
}
"""Of series whose meaning names none, by a word of their names."""
_SHARED = {"model_name", "engine", "group", "server"}
_BLOCKS = {"dram": 0, "ssd": 0, "absent": 0, "lost": 0}
_TIERS = {"dram": 0, "ssd": 0}


class _Line:
    """A waiting line, so that its series are there."""

    tokens = 0

    def __len__(self) -> int:
        return 0


def metrics() -> str:
    """The page."""
    gateway = GatewayMetrics("m")
    gateway.line = _Line()
    gateway.expect(("default",), [("GET", "/health", 200)])
    gateway.publish_instance(_instance())
    gateway.publish_groups([_group()])
    gateway.system.publish({"decode": 1}, _tally())
    gateway.publish_servers([_server()])
    gateway.hosts.publish([HostRow("n0")])
    tenants: NamespaceBoard = gateway.namespaces
    parts = [
        made_by_a_script("Metrics", HEAD),
        _section("Requests", "Counted by the gateway, once per request.", gateway.collect()),
        _section(
            "Instances and their use of the KV-cache pool",
            "From each instance's latest snapshot. `pool` is `prefill`, `decode` or `aggregated`. Series without a\n"
            "source, such as draft tokens without speculation, are absent.",
            gateway.instances.collect(),
        ),
        _section(
            "The system",
            "From the scaling board, the same at every gateway; `model_name` is the only common label.",
            gateway.system.collect(),
        ),
        _section("Groups of ranks", "From the latest facts of all ranks of each group.", gateway.groups.collect()),
        _section(
            "Memory servers", "From each server's latest numbers; only with a KV-cache pool.", gateway.servers.collect()
        ),
        _section(
            "Hosts",
            "From the scaling board's last poll, the same in every gateway; `host` is `n0`, `n1` and so on.",
            gateway.hosts.collect(),
        ),
        _section(
            "Tenants",
            "Shown only with an admin key, or where no keys are required.",
            tenants.collect(),
        ),
    ]
    return "\n".join(parts)


def _section(title: str, text: str, families: Iterable[Metric]) -> str:
    rows = table(("name", "type", "more labels", "unit", "meaning"), _rows(families))
    return f"## {title}\n\n{text}\n\n{rows}"


def _rows(families: Iterable[Metric]) -> Iterator[tuple[str, ...]]:
    for family in families:
        labels = {label for sample in family.samples for label in sample.labels} - _SHARED - {"le"}
        unit = _UNIT.search(family.documentation)
        meaning = _UNIT.sub("", family.documentation)
        name = f"{family.name}_total" if family.type == "counter" else family.name
        cells = literal(name), family.type, ", ".join(literal(label) for label in sorted(labels))
        yield *cells, unit["unit"] if unit else _unit_by_name(family.name), meaning


def _unit_by_name(name: str) -> str:
    """The unit that the last telling word of a name says; empty for plain counts."""
    return next((_UNITS_BY_NAME[word] for word in reversed(name.split("_")) if word in _UNITS_BY_NAME), "")


def _latencies(*operations: str) -> dict[str, OperationLatencies]:
    return {operation: OperationLatencies((1.0,), (0, 0), 0.0) for operation in operations}


def _instance() -> InstanceStats:
    """One that has done everything once."""
    use = PoolClientStats(
        blocks=_BLOCKS,
        lost={"timeout": 0},
        dropped={"full": 0},
        moved_bytes={"get": 0, "put": 0},
        latencies=_latencies("lookup", "get", "put"),
    )
    return InstanceStats(
        replica=ReplicaId("decode#a"),
        pool="decode",
        pool_use=use,
        experts=_experts(),
        accepted_drafts_total=(0,),
        steps_by_tokens=(0,) * (len(ITERATION_TOKEN_BUCKETS) + 1),
        paths=(HandoffPath("n0", "n1", 0, 0, OperationLatencies((1.0,), (0, 0), 0.0)),),
    )


def _tally() -> SystemTally:
    starts = {"decode": {"total": StartTimes()}}
    return SystemTally({"decode": {"burst": 1}}, starts, replicas={"decode": {"serving": 1}})


def _experts() -> ExpertFacts:
    exchange = ExchangeFacts((0, 0), (0, 0), (0.0, 0.0), 0.0)
    return ExpertFacts(
        epoch=1, map_version=1, members=(0, 1), ranks=2, experts=1, to_ranks=((0, 0),), exchange=exchange
    )


def _group() -> GroupStats:
    return GroupStats(
        "decode#a", "decode", (1, 0.0), (1.0,), 1, {"done": 1}, {"dead": 1}, paces={"0": 1.0}, measures={"none": 1}
    )


def _server() -> MemoryServerStats:
    """One that has done everything once."""
    return MemoryServerStats(
        server="server",
        weight=1.0,
        used_bytes=_TIERS,
        capacity_bytes=_TIERS,
        hits=_TIERS,
        evictions={"dropped": 0},
        refused={"full": 0},
        moved_bytes={"sent": 0},
        damaged=_TIERS,
        latencies=_latencies("lookup"),
        namespaces={"default": _TIERS},
    )
