"""Simulated NPUs: the device and model they represent, their time scale, and its variation."""

from dataclasses import dataclass
from typing import Literal

from serving.config.key import key
from serving.config.upgrade_rules import AUTOSCALER, ENGINES, GATEWAY, restarts, upgrades

Executor = Literal["auto", "native", "torch", "simulated"]
ExpertBalance = Literal["default", "perfect"]
SimulatedKv = Literal["auto", "bf16", "int8", "fp8"]
PrefillLayout = Literal["device", "sp-tp-sp", "data-parallel", "context-parallel"]
ModelLoad = Literal["pool", "storage", "prewarmed"]
PoolPlane = Literal["ub", "vpc"]


@dataclass(frozen=True, slots=True)
class SimulationConfig:
    """`[simulation]`, for `cloudmatrix simulate` and for live instances with `[engine] executor = "simulated"`."""

    UPGRADE = upgrades(restarts(GATEWAY, *ENGINES, AUTOSCALER))
    LIVE_ONLY = "time_scale kv_shrink output_tokens"

    device: str = key(
        "simulated device: a name listed by `cloudmatrix cost --list`, or a TOML file",
        default="ascend-910c",
        low=1,
    )
    engine: str = key(
        "engine whose steps are simulated: a name listed by `cloudmatrix cost --list`, or a TOML file written by "
        "`cloudmatrix cost --fit`; empty = the one that the device file was fitted to, CloudMatrix-Infer",
        default="",
    )
    weights: str = key(
        "weight formats: `auto` = as stated in the model's config.json, FP8 as W8A8 on a device without FP8 "
        "arithmetic; else `w8a8`, `fp8`, `bf16`, `w4a8`, `w8a16`, `w4a16`, `mxfp4`, or two of them: "
        "`attention+experts`",
        default="auto",
        low=1,
    )
    kv: SimulatedKv = key("KV cache format: `auto` = as stated in the model's config.json, else `bf16`", default="auto")
    decode_attention_tp: int = key(
        "attention TP of decode: dies that share their sequences, each with a part of the heads and of dense "
        "feed-forwards; latents and down-projections are replicated",
        default=1,
        low=1,
        high=768,
    )
    prefill_attention_tp: int = key("attention TP of prefill", default=1, low=1, high=768)
    prefill_attention: PrefillLayout = key(
        "how the dies of a prefill instance share prompts: `device` = as in the device's file; `sp-tp-sp` = split by "
        "sequence and heads; `context-parallel` = by sequence alone; `data-parallel` = each die or group has its own",
        default="device",
    )
    expert_tp: int = key(
        "expert TP: dies that share each of their experts, each with a part of its width; 1 = each expert is whole "
        "on a die (EP)",
        default=1,
        low=1,
        high=768,
    )
    redundant_experts: int = key(
        "redundant copies of routed experts per instance: they balance the load and take memory; -1 = as in the "
        "device's file",
        default=-1,
        low=-1,
        high=65_536,
    )
    head_tp: int = key("dies that share the LM head, each with a part of the vocabulary", default=1, low=1, high=768)
    expert_dies: int = key(
        "dies of a decode instance that only hold experts; the others run attention and hold the KV cache and the "
        "sequences; 0 = every die does both",
        default=0,
        low=0,
        high=767,
    )
    domains: int = key(
        "with expert_dies: groups of attention dies that use the experts in turns", default=3, low=1, high=64
    )
    trampolines: Literal["ranks", "direct", "peers"] = key(
        "with expert_dies: how attention dies address more expert dies than a domain has dies: `ranks` = as many "
        "expert dies forward rows to the others and results back (xDeepServe), `direct` = all of them, `peers` = one "
        "expert die each, with the gate, which exchanges rows with the others (afd-plugin's CAM P2P)",
        default="ranks",
    )
    supernodes: int = key(
        "identical supernodes, each with its own share of the requests; virtual time only", default=1, low=1, high=1024
    )
    time_scale: float = key(
        "live: virtual seconds per real second; `[slo]`, `[autoscaler]`, `handoff_lease_s` and `prompt_delay_s` are "
        "in virtual seconds; limits that people notice or that supervise processes are in real ones: `[gateway]`, "
        "`[health]`, `[kvcache]`, `drain_s`, `empty_role_s`, `stall_timeout_s`, `manual_hold_s`",
        default=1.0,
        low=1e-4,
        high=1e4,
    )
    kv_shrink: int = key(
        "live: KV bytes represented by one byte of shared memory; blocks are accounted, not filled",
        default=65_536,
        low=1,
    )
    seed: int = key("seed of all random numbers", default=0, low=0)
    drafts: int = key("draft tokens per decode step, by MTP or `draft_model`; 0 = off", default=1, low=0, high=7)
    draft_model: str = key(
        "separate draft model (EAGLE-3 and the like) in place of MTP: `kimi-k2-eagle3`, `qwen3-235b-eagle3`, or a "
        "folder with its config.json; its layers, LM head and cache are priced; empty = the model's own MTP modules",
        default="",
    )
    acceptance: float | tuple[float, ...] = key(
        "share of draft tokens that verification accepts; or a list by position: `[0.85, 0.6]`, where the second is "
        "the share among those whose first was accepted",
        default=0.7,
        low=0.0,
        high=1.0,
    )
    expert_balance: ExpertBalance = key(
        "load of the experts in prefill: `default` = as published with the default EPLB, `perfect` = all equal",
        default="default",
    )
    routing: str = key(
        "load of the experts in decode: a file recorded by `cloudmatrix experts record`, or `skew` = drawn, as "
        "unequal as published for DeepSeek-R1; the busiest die then follows from the expert map, which `[experts]` "
        "controls; empty = as unequal as when the device was fitted",
        default="",
    )
    pool_plane: PoolPlane = key(
        "network plane of loads from the KV-cache pool: `ub` = NPUs read the pool's memory themselves; `vpc` = TCP to "
        "the memory of the NPU's host, from where it is read: slower",
        default="ub",
    )
    pool_gb_per_s: float = key(
        "effective rate at which one NPU loads cached blocks [GB/s]; 0 = that of `pool_plane` on the device",
        default=0.0,
        low=0.0,
    )
    ssd_gb_per_s: float = key(
        "rate at which one memory server reads and writes its SSD tier [GB/s]; the default is a node's 400 Gbit/s to "
        "network volumes; a local NVMe disk reads 3 to 14",
        default=50.0,
        low=0.001,
    )
    jitter: float = key(
        "log-normal spread of step times: standard deviation of the logarithm", default=0.0, low=0.0, high=1.0
    )
    spike_share: float = key("share of steps with a latency spike", default=0.0, low=0.0, high=0.5)
    spike_factor: float = key("factor by which a spike lengthens its step", default=5.0, low=1.0, high=100.0)
    model_load: ModelLoad = key(
        "source of a new instance's weights: `pool` (UB), `storage` (OBS), or `prewarmed` = already loaded",
        default="pool",
    )
    start_s: float = key(
        "time from the decision until a new instance serves [s], e.g. `total` of `cloudmatrix decisions --starts`; 0 "
        "= an engine's start plus the time of `model_load` on the device",
        default=0.0,
        low=0.0,
        high=86_400.0,
    )
    warm_npus: int = key(
        "NPUs with running processes that have no model yet, for instances that start or grow: those skip the "
        "process start of 30 s; a used one is available again after that time",
        default=0,
        low=0,
        high=384,
    )
    graphs_s: float = key(
        "time to load compiled graphs, the last phase of a start or a resize [s]",
        default=0.0,
        low=0.0,
        high=3600.0,
    )
    resize_pause_s: float = key("pause of a decode instance that is resized [s]", default=0.5, low=0.0, high=3600.0)
    output_tokens: int = key(
        "live: mean output length of requests without `max_tokens` [tokens]; others get all they request",
        default=256,
        low=1,
    )
    gateway_s: float = key(
        "gateway time of one request: HTTP, tokenization, hashing, routing [s]",
        default=0.002,
        low=0.0,
        high=10.0,
    )
    status_period_s: float = key(
        "how often instances report their load to gateways [s]; in between, gateways count what they sent, and several "
        "receive a report of every change",
        default=0.1,
        low=0.0,
        high=60.0,
    )

    @property
    def prefill_imbalance(self) -> float | None:
        """Imbalance of experts in prefill, as `PrefillLoad` takes it; None = as the device was fitted."""
        return 1.0 if self.expert_balance == "perfect" else None
