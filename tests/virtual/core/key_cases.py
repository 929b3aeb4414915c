"""Small systems in virtual time, one for each kind of configuration key, in which that key has an effect."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from serving.config.serve import ServeConfig
from serving.virtual.report.latencies import Slo
from serving.virtual.report.result_json import result_json
from serving.virtual.report.summary import summarize
from serving.virtual.simulation import simulate
from serving.virtual.workload.columns import RequestStream, TraceRequest
from serving.virtual.workload.jobs import JobReplay, JobTurn, TraceJob
from serving.virtual.workload.replay import Portion, Stretch
from serving.virtual.workload.reshaping import Scaling
from tests.virtual.core.case import burst, config
from tests.virtual.core.scripted_scaler import ScriptedScaler


@dataclass(frozen=True)
class Case:
    """A configuration, its load, and the pools' sizes over time if no policy sets them."""

    config: ServeConfig
    load: Callable[[], RequestStream]
    script: tuple[tuple[float, str, int], ...] = ()

    def result(self, config: ServeConfig, stop_s: float | None = None) -> bytes:
        """The whole result of a run of this load, except the description of the configuration itself."""
        scaler = ScriptedScaler(self.script) if self.script else None
        ran = simulate(config, self.load(), timeline_step_s=1.0, scaler=scaler, stop_s=stop_s)
        result = replace(ran, wall_s=0.0, config={})
        return result_json(result, summarize(result, Slo(config.slo.ttft_s, config.slo.tpot_s)), requests=True)


@cache
def base_result(name: str, stop_s: float | None = None) -> bytes:
    """The result of an unmodified case."""
    return CASES[name].result(CASES[name].config, stop_s)


def changed(config: ServeConfig, values: dict[str, Any]) -> ServeConfig:
    """The configuration with other values, by "section.key"."""
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        if section == "cluster.nodes":
            nodes = tuple(replace(node, **{name: value}) for node in config.cluster.nodes)
            config = replace(config, cluster=replace(config.cluster, nodes=nodes))
        else:
            config = replace(config, **{section: replace(getattr(config, section), **{name: value})})
    return config


def _made(requests: list[TraceRequest], duration_s: float) -> RequestStream:
    return RequestStream("by hand", requests, count=len(requests), duration_s=duration_s)


def crowd() -> RequestStream:
    """More prompts than fit into one prefill instance, of three lengths, with shared prefixes."""
    lengths = (900, 2600, 7000)
    made = [
        TraceRequest(n / 20, lengths[n % 3], 8 + n % 20, (n % 4, 100 + n % 3, 200 + n, 300 + n)[: 1 + n % 4])
        for n in range(60)
    ]
    made += [TraceRequest(14 + n / 20, 2600, 8 + n % 20, (n % 4, 100 + n % 3)) for n in range(20)]
    return _made(made, 15.0)


def steady() -> RequestStream:
    """A few long outputs."""
    made = [
        TraceRequest(n / 8, 3000 + 600 * (n % 3), (30, 600)[n % 8 == 0], (n % 5, 50 + n % 12, 100 + n))
        for n in range(80)
    ]
    made += [TraceRequest(26 + n / 4, 2048, 60) for n in range(8)]
    return _made(made, 28.0)


def wave() -> RequestStream:
    """Many prompts at once, silence, then long outputs."""
    made = [TraceRequest(n / 40, 8192, 16 + n % 90, (n % 12, 50 + n % 12, 100 + n)) for n in range(120)]
    made += [TraceRequest(30 + n / 3, 6048, 1500) for n in range(60)]
    return _made(made, 50.0)


def agents(stop: str = "tool_use", pause_s: float = 30.0) -> RequestStream:
    """Conversations that grow by a block with every turn, and together fill the memory."""
    made = []
    for job in range(10):
        runs = [((100 * job, 100 * job + 3 + turn),) for turn in range(8)]
        turns = [
            JobTurn(512 * (4 + turn), 4, run, (turn - 1,) if turn else (), pause_s if turn else 0.0, turn % 2, stop, 0)
            for turn, run in enumerate(runs)
        ]
        made.append(TraceJob(job, str(job), 2.0 * job, tuple(turns)))
    replay = JobReplay(tuple(made), 512, Stretch(), Scaling(), Portion())
    return RequestStream("by hand", (), count=len(made), duration_s=20.0, jobs=replay)


_BLOCK_KIB = 34_816
"""A little more than one KV block of 512 tokens takes."""

_PLAIN = config(
    gateway={"replicas": 2},
    kvcache={
        "replicas": 2, "ub_memory_mib": 300, "ssd_mib": 600, "slab_kib": 2 * _BLOCK_KIB, "high_water": 0.8,
        "low_water": 0.5,
    },
    prefill={"replicas": 1, "max_step_tokens": 4096, "max_sequences": 4, "max_waiting": 60},
    decode={"replicas": 2, "npus_per_instance": 32, "max_sequences": 256}, simulation={"spike_share": 0.05},
)  # fmt: skip
_MOVED = config(
    kvcache={"replicas": 2, "ub_memory_mib": 800, "ramp_s": 5.0, "slab_kib": 2 * _BLOCK_KIB}, prefill={"replicas": 1},
    decode={"replicas": 2, "npus_per_instance": 32, "max_sequences": 64, "max_step_tokens": 64},
    engine={"drain_s": 3.0}, model={"reasoning": False}, simulation={"pool_gb_per_s": 0.02, "model_load": "prewarmed"},
)  # fmt: skip
_EMPTIED = ((3.0, "decode", 0), (20.0, "decode", 1))
_SCRIPT = (
    (3.0, "kvcache", 4),
    (6.0, "decode", 1),
    (8.0, "kvcache", 1),
    (20.0, "prefill", 0),
    (20.0, "decode", 0),
    (27.0, "decode", 1),
)
_SLO = config(
    autoscaler={
        "policy": "slo", "hold_s": 6.0, "max_prefill": 4, "idle_to_zero_s": 8.0, "min_prefill": 0, "max_kvcache": 4,
        "max_decode": 3, "npu_budget": 200, "requests_per_instance": 2.0,
    },
    kvcache={"replicas": 1, "ub_memory_mib": 1000}, prefill={"replicas": 1},
    decode={"replicas": 2, "npus_per_instance": 32, "max_sequences": 640, "max_step_tokens": 640},
    simulation={"model_load": "prewarmed"}, slo={"tpot_s": 0.018, "ttft_s": 0.5},
)  # fmt: skip

_PARTS = {
    "autoscaler.decode_step_npus": 8, "autoscaler.min_decode_npus": 32, "autoscaler.max_decode_npus": 64,
    "simulation.model_load": "pool", "simulation.graphs_s": 0.5, "simulation.warm_npus": 64,
}  # fmt: skip

_ALONE = {
    "prefill.replicas": 0, "decode.replicas": 1, "decode.npus_per_instance": 16, "decode.max_sequences": 32,
    "decode.max_waiting": 1,
}  # fmt: skip

_BOTH = {
    "serving.mode": "aggregated", "aggregated.replicas": 2, "aggregated.npus_per_instance": 16,
    "aggregated.max_step_tokens": 2048, "aggregated.max_sequences": 16, "aggregated.max_waiting": 60,
}  # fmt: skip

_EXPERTS = {
    "simulation.routing": "skew", "experts.redundant": 1, "experts.window_s": 2.0, "experts.slices": 4,
    "experts.move_mib_per_s": 1e6, "decode.replicas": 1, "decode.npus_per_instance": 16,
}  # fmt: skip

_AGENTS = {
    "gateway.replicas": 1, "gateway.tool_pauses": "act", "kvcache.ub_memory_mib": 1200, "kvcache.ssd_mib": 2000,
    "kvcache.store_decoded": "always",
}  # fmt: skip

_RANKS = {"replicas": 1, "npus_per_instance": 12, "attention_ranks": 2, "expert_ranks": 1, "max_sequences": 256}

CASES = {
    "plain": Case(_PLAIN, crowd),
    "moved": Case(_MOVED, steady, _SCRIPT),
    "emptied": Case(_MOVED, steady, _EMPTIED),
    "alone": Case(changed(_MOVED, _ALONE), lambda: burst(80, prompt=400, output=16, every_s=0.005)),
    "slo": Case(_SLO, wave),
    "requests": Case(changed(_SLO, {"autoscaler.policy": "requests"}), wave),
    "parts": Case(changed(_SLO, _PARTS), wave),
    "agents": Case(changed(_PLAIN, _AGENTS), agents),
    "aggregated": Case(changed(_PLAIN, _BOTH), crowd),
    "experts": Case(changed(_PLAIN, _EXPERTS), crowd),
    "roles": Case(changed(_PLAIN, {f"decode.{key}": value for key, value in _RANKS.items()}), crowd),
    "no cache": Case(changed(_PLAIN, {"kvcache.replicas": 0, "simulation.drafts": 0}), crowd),
    "no reuse": Case(changed(_PLAIN, {"engine.prefix_reuse": False, "simulation.spike_share": 0.0}), crowd),
    "no SSD": Case(changed(_PLAIN, {"kvcache.ssd_mib": 0}), crowd),
}
