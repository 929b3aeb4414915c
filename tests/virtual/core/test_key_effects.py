"""Every configuration key in virtual time: it changes the result, or `serving.config.inert_rules` lists it as having no
effect.
"""

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from serving.config.effects import all_keys, idle_keys
from serving.config.scaling import SloConfig
from serving.config.serve import ServeConfig
from serving.ids import BlockHash
from serving.scaling.core.slo_attribution import SloAttribution
from serving.scaling.core.totals import Gains
from serving.tools.planning.candidate import Candidate, Shape
from serving.tools.planning.candidate_run import PlanSetting, configured
from serving.tools.planning.trace import TraceChoice
from serving.tools.planning.verdict import PlanTarget
from serving.virtual.memory_pool import VirtualPool
from serving.virtual.simulation import simulate
from tests.config.other_values import other_value
from tests.virtual.core.key_cases import CASES, base_result, changed, crowd
from tests.virtual.core.scripted_scaler import ScriptedScaler

EFFECTS: dict[str, tuple[str, Any]] = {
    "gateway.replicas": ("plain", 1),
    "gateway.request_timeout_s": ("plain", 1.0),
    "gateway.max_running_sequences": ("plain", 3),
    "gateway.max_queued_requests": ("moved", 0),
    "gateway.max_queued_tokens": ("moved", 1),
    "gateway.routing": ("plain", "round_robin"),
    "gateway.api_keys": ("plain", ("one", "two")),  # where keys share, each leaves a seat to the others
    "gateway.admin_keys": ("plain", ("one", "two")),
    "gateway.role_wait_s": ("moved", 0.0),
    "gateway.order": ("plain", "job"),
    "gateway.tool_pauses": ("agents", "off"),
    "kvcache.retain_share": ("agents", 0.0),
    "kvcache.max_ttl_s": ("agents", 0.5),
    "kvcache.demote_after_s": ("agents", 1000.0),
    "kvcache.sessions": ("agents", 1),
    "kvcache.branches": ("agents", 1),
    "cluster.nodes.npus": ("plain", 300),
    "cluster.nodes.ub_memory_mib": ("moved", 1700),
    "engine.block_tokens": ("plain", 256),
    "engine.max_model_len": ("plain", 3000),
    "engine.prompt_delay_s": ("plain", 0.0),
    "engine.prefix_reuse": ("plain", False),
    "engine.handoff_lease_s": ("plain", 0.1),
    "engine.drain_s": ("moved", 0.0),
    "engine.empty_role_s": ("emptied", 100.0),
    "engine.max_attempts": ("alone", 1),
    "prefill.replicas": ("plain", 2),
    "prefill.npus_per_instance": ("plain", 32),
    "prefill.max_step_tokens": ("plain", 8192),
    "prefill.max_sequences": ("plain", 1),
    "prefill.max_waiting": ("plain", 3),
    "decode.replicas": ("plain", 1),
    "decode.npus_per_instance": ("plain", 64),
    "decode.attention_ranks": ("roles", 3),
    "decode.expert_ranks": ("roles", 2),
    "decode.expert_npus": ("roles", 8),
    "decode.max_step_tokens": ("moved", 6400),
    "decode.max_sequences": ("moved", 128),
    "decode.max_waiting": ("alone", 256),
    "aggregated.replicas": ("aggregated", 3),
    "aggregated.npus_per_instance": ("aggregated", 32),
    "aggregated.max_step_tokens": ("aggregated", 8192),
    "aggregated.max_sequences": ("aggregated", 4),
    "aggregated.max_waiting": ("aggregated", 1),
    "kvcache.replicas": ("plain", 3),
    "kvcache.ub_memory_mib": ("plain", 600),
    "kvcache.ssd_mib": ("plain", 70),
    "kvcache.write_through": ("plain", True),
    "kvcache.eviction": ("slo", "lfu"),
    "kvcache.prefetch_share": ("plain", 0.5),
    "kvcache.high_water": ("plain", 0.95),
    "kvcache.low_water": ("plain", 0.1),
    "kvcache.max_store_share": ("plain", 0.0),
    "kvcache.store_decoded": ("moved", "never"),
    "kvcache.drain_s": ("moved", 0.01),
    "model.reasoning": ("moved", True),
    "simulation.device": ("plain", "h800"),
    "simulation.engine": ("plain", "vllm-ascend"),
    "simulation.weights": ("plain", "bf16+w4a8"),
    "simulation.kv": ("plain", "int8"),
    "simulation.decode_attention_tp": ("plain", 2),
    "simulation.prefill_attention_tp": ("plain", 2),
    "simulation.prefill_attention": ("plain", "context-parallel"),
    "simulation.expert_tp": ("plain", 2),
    "simulation.redundant_experts": ("plain", 0),
    "simulation.head_tp": ("plain", 2),
    "simulation.routing": ("plain", "skew"),
    "experts.redundant": ("experts", 2),
    "experts.policy": ("experts", "none"),
    "experts.window_s": ("experts", 4.0),
    "experts.slices": ("experts", 2),
    "experts.min_gain": ("experts", 0.9),
    "experts.move_mib_per_s": ("experts", 10_000.0),
    "simulation.expert_dies": ("plain", 16),
    "simulation.domains": ("roles", 2),
    "simulation.trampolines": ("roles", "direct"),
    "simulation.seed": ("plain", 5),
    "simulation.drafts": ("plain", 0),
    "simulation.draft_model": ("plain", "kimi-k2-eagle3"),
    "simulation.acceptance": ("plain", 0.2),
    "simulation.expert_balance": ("slo", "perfect"),
    "simulation.pool_gb_per_s": ("plain", 0.1),
    "simulation.pool_plane": ("plain", "vpc"),
    "simulation.ssd_gb_per_s": ("plain", 0.5),
    "simulation.jitter": ("plain", 0.2),
    "simulation.spike_share": ("plain", 0.3),
    "simulation.spike_factor": ("plain", 30.0),
    "simulation.model_load": ("slo", "pool"),
    "simulation.start_s": ("slo", 40.0),
    "simulation.warm_npus": ("parts", 0),
    "simulation.graphs_s": ("parts", 3.0),
    "simulation.resize_pause_s": ("parts", 2.0),
    "autoscaler.decode_step_npus": ("parts", 16),
    "autoscaler.min_decode_npus": ("parts", 24),
    "autoscaler.max_decode_npus": ("parts", 40),
    "simulation.gateway_s": ("plain", 0.1),
    "simulation.status_period_s": ("moved", 1.0),
    "slo.ttft_s": ("plain", 0.1),
    "slo.tpot_s": ("plain", 0.01),
    "autoscaler.policy": ("slo", "none"),
}
"""A value that shows the key at work, and where."""

SCALER_EFFECTS: dict[str, tuple[tuple[str, ...], Any]] = {
    "autoscaler.period_s": (("slo", "requests"), 3.0),
    "autoscaler.utilisation": (("slo",), 1.0),
    "autoscaler.hold_s": (("slo",), 60.0),
    "autoscaler.idle_to_zero_s": (("slo", "requests"), 100.0),
    "autoscaler.npu_budget": (("slo", "requests"), 100),
    "autoscaler.requests_per_instance": (("requests",), 16.0),
    "autoscaler.min_prefill": (("slo", "requests"), 2),
    "autoscaler.max_prefill": (("slo",), 1),
    "autoscaler.min_decode": (("slo", "requests"), 3),
    "autoscaler.max_decode": (("slo",), 1),
    "autoscaler.min_kvcache": (("slo",), 2),
}
"""The policies under which `[autoscaler]` keys are seen at work."""

ELSEWHERE = {
    "model.path",  # every test of the cost model
    "model.name",  # it is what the report is called
    "cluster.nodes.name",  # it is what messages call the node
    "engine.executor",  # below: "simulated" is what virtual time is, others are listed
    "hardware.hbm_per_die_mib",  # below: 0 is what virtual time has, others are listed
    "serving.mode",  # the cases `plain` and `aggregated`
    "experts.most_ranks",  # tests/virtual/core/test_role_changes.py
    "experts.on_loss",  # tests/virtual/core/test_expert_group.py, as the next
    "experts.straggler",
    "simulation.supernodes",  # tests/virtual/core/test_shards.py
    "kvcache.get_timeout_s",  # tests/virtual/core/test_ssd_loads.py
    "kvcache.lease_s",
    "kvcache.ramp_s",
    "kvcache.slab_kib",
    "autoscaler.max_prefill",
    "autoscaler.max_decode",
    "autoscaler.max_kvcache",
    "autoscaler.nodes",  # tests/virtual/core/test_scaling.py, as the next two
    "autoscaler.node_wait_s",
    "autoscaler.spread_after_s",
    "slo.attainment",
}
"""Shown by the tests below, or of no effect by nature."""

OF_SCRIPTS = {
    *("engine.drain_s", "kvcache.drain_s", "simulation.model_load", "simulation.start_s", "simulation.graphs_s"),
    *("simulation.warm_npus", "autoscaler.period_s"),
    *("autoscaler.nodes", "autoscaler.node_wait_s", "autoscaler.spread_after_s"),
}
"""Listed without a policy, since pools then keep their sizes; but the script of a test changes them."""


BEGINNING_S = 4.0
"""Enough of a run to see most keys at work."""


@pytest.mark.parametrize("key", EFFECTS)
def test_a_key_that_is_not_listed_has_an_effect(key: str) -> None:
    name, value = EFFECTS[key]
    case = CASES[name]
    assert key not in idle_keys(case.config, "simulate") or key in OF_SCRIPTS
    assert _differs(name, {key: value})


@pytest.mark.parametrize(
    ("key", "policy"), [(key, policy) for key, (policies, _) in SCALER_EFFECTS.items() for policy in policies]
)
def test_each_key_of_the_autoscaler_has_an_effect_under_its_policies(key: str, policy: str) -> None:
    case = CASES[policy]
    assert key not in idle_keys(case.config, "simulate")
    assert _differs(policy, {key: SCALER_EFFECTS[key][1]})


@pytest.mark.parametrize("name", CASES)
def test_every_other_key_is_listed_and_has_none(name: str) -> None:
    case = CASES[name]
    idle = idle_keys(case.config, "simulate")
    shown = EFFECTS.keys() | SCALER_EFFECTS.keys() | ELSEWHERE
    assert all_keys().keys() <= shown | idle.keys()
    if case.script:
        idle = {key: rule for key, rule in idle.items() if key not in OF_SCRIPTS}
    assert not _differs(name, _others(case.config, idle))


def test_a_plan_is_the_same_whatever_its_idle_keys_say() -> None:
    config = CASES["slo"].config
    trace = TraceChoice(Path("none"))
    setting = PlanSetting(config, trace, trace, PlanTarget(2.0, 0.05, 0.95))
    candidate = Candidate(Shape(16, 1024), 1, Shape(32, 8), 1)
    idle = idle_keys(config, "plan")
    assert {"autoscaler.policy", "prefill.replicas", "kvcache.replicas", "engine.threads"} <= idle.keys()
    other = PlanSetting(changed(config, _others(config, idle)), trace, trace, setting.target)
    case = CASES["plain"]
    assert case.result(configured(other, candidate)) == case.result(configured(setting, candidate))


@pytest.mark.parametrize(("key", "value"), [("engine.executor", "native"), ("hardware.hbm_per_die_mib", 64)])
def test_what_virtual_time_is_anyway_is_not_listed_but_anything_else_is(key: str, value: object) -> None:
    config = changed(CASES["plain"].config, {key: value})
    assert key in idle_keys(config, "simulate")
    assert key not in idle_keys(CASES["plain"].config, "simulate")
    assert not _differs("plain", {key: value})


@pytest.mark.parametrize("key", ["lease_s", "ramp_s", "slab_kib"])
def test_what_only_a_full_pool_shows_has_an_effect_there(key: str) -> None:
    def seen(**other: int) -> list[object]:
        values = {"lease_s": 60.0, "ramp_s": 5.0, "slab_kib": 2 << 10, "ssd_mib": 0, "ub_memory_mib": 3000} | other
        kvcache = changed(CASES["plain"].config, {f"kvcache.{one}": value for one, value in values.items()}).kvcache
        pool = VirtualPool(kvcache, 30 << 20)
        pool.lookup_and_hold("", _stored(pool, 0, 1), 0, 0.0)
        held_until = pool.next_tick()
        pool.add_server(100.0)  # long after the founders
        _stored(pool, 103, 500)
        return [held_until, pool.servers()]

    assert seen() == seen()
    assert seen(**{key: {"lease_s": 20, "ramp_s": 300, "slab_kib": 7 * 30 << 10}[key]}) != seen()


def _stored(pool: VirtualPool, first: int, count: int) -> list[BlockHash]:
    """Put blocks into a pool, each a prompt of its own."""
    blocks = [BlockHash(blake2b(number.to_bytes(8), digest_size=16).digest()) for number in range(first, first + count)]
    for block in blocks:
        pool.store("", [block], 0, float(first))
    return blocks


@pytest.mark.parametrize("policy", ["slo", "requests"])
@pytest.mark.parametrize("key", ["max_prefill", "max_decode", "max_kvcache"])
def test_a_policy_is_told_the_bounds_of_its_pools(policy: str, key: str) -> None:
    def bounds(config: ServeConfig) -> set[tuple[str, int]]:
        scaler = ScriptedScaler()
        simulate(config, crowd(), scaler=scaler, stop_s=3.0)
        seen = scaler.seen[0]
        assert seen.cache is not None
        return {("kvcache", seen.cache.high), *((pool.pool, pool.high) for pool in seen.pools)}

    config, pool = CASES[policy].config, key.removeprefix("max_")
    assert (pool, 1) in bounds(changed(config, {f"autoscaler.{key}": 1})) - bounds(config)


def test_the_share_that_is_promised_decides_what_is_spent() -> None:
    def spent(attainment: float) -> float:
        blame = SloAttribution(SloConfig(attainment=attainment))
        blame.see(Gains(1.0, 100, 100, 100, 100, ttft_met=90, ttft_missed=10, tpot_met=100, tpot_missed=0, rejected=0))
        return blame.spent

    assert spent(0.5) < spent(0.9)


def _differs(name: str, values: dict[str, Any]) -> bool:
    """Whether a case has another result with these values: in its first seconds, or else in the whole run."""
    case = CASES[name]
    config = changed(case.config, values)
    return any(case.result(config, stop_s) != base_result(name, stop_s) for stop_s in (BEGINNING_S, None))


def _others(config: ServeConfig, keys: Mapping[str, object]) -> dict[str, Any]:
    """Another value for each key, except for tenants, of which these systems have none."""
    return {key: other_value(config, key) for key in keys if not key.startswith("namespaces.")}
