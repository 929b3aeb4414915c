"""Simulated NPUs: the device and model they represent, their time scale, and its variation."""

from dataclasses import dataclass
from typing import Literal

from serving.config.key import key

Executor = Literal["auto", "native", "torch", "simulated"]
ExpertBalance = Literal["default", "perfect"]
SimulatedKv = Literal["auto", "bf16", "int8"]
PrefillLayout = Literal["device", "sp-tp-sp", "data-parallel", "context-parallel"]
ModelLoad = Literal["pool", "storage", "prewarmed"]


@dataclass(frozen=True, slots=True)
class SimulationConfig:
    """`[simulation]`, for `cloudmatrix simulate` and for live instances with `[engine] executor = "simulated"`."""

    device: str = key(
        "device that is simulated: a name that `cloudmatrix cost --list` shows, or a TOML file",
        default="ascend-910c",
        low=1,
    )
    engine: str = key(
        "engine whose steps are simulated: a name that `cloudmatrix cost --list` shows, or a TOML file that "
        "`cloudmatrix cost --fit` wrote; empty = the one that the device file was fitted to, CloudMatrix-Infer",
        default="",
    )
    weights: str = key(
        "formats of the model's weights: `auto` = as its config.json states, FP8 as W8A8 on a device that multiplies "
        "none; else `w8a8`, `fp8`, `bf16`, `w4a8`, `w8a16`, `w4a16`, `mxfp4`, or two of them: `attention+experts`",
        default="auto",
        low=1,
    )
    kv: SimulatedKv = key(
        "format of the KV cache: `auto` = as the model's config.json states, else `bf16`", default="auto"
    )
    decode_attention_tp: int = key(
        "dies of a decode instance that share their sequences, each with its part of the heads and of dense "
        "feed-forwards; latents and down-projections are copied",
        default=1,
        low=1,
        high=768,
    )
    prefill_attention_tp: int = key("the same of prefill instances", default=1, low=1, high=768)
    prefill_attention: PrefillLayout = key(
        "how dies of a prefill instance share prompts: `device` = as the device's file says; split by sequence and "
        "heads, `sp-tp-sp`, or by sequence alone, `context-parallel`; each die or group its own, `data-parallel`",
        default="device",
    )
    expert_tp: int = key(
        "dies that share each of their experts, each with its part of the width; 1 = experts are whole on a die (EP)",
        default=1,
        low=1,
        high=768,
    )
    redundant_experts: int = key(
        "copies of routed experts beyond one of each that every instance holds: even out the busiest die, take memory; "
        "-1 = as the device's file says",
        default=-1,
        low=-1,
        high=65_536,
    )
    head_tp: int = key("dies that share the LM head, each with its part of the vocabulary", default=1, low=1, high=768)
    expert_dies: int = key(
        "dies of a decode instance that hold experts only; the others do the attention, hold the KV cache and have the "
        "sequences; 0 = every die does both",
        default=0,
        low=0,
        high=767,
    )
    domains: int = key(
        "with expert_dies: groups of attention dies that take turns at the experts", default=3, low=1, high=64
    )
    supernodes: int = key(
        "equal supernodes, each with its own share of the requests; virtual time only", default=1, low=1, high=1024
    )
    time_scale: float = key(
        "live: virtual seconds that pass in one real second; `[slo]`, `[autoscaler]`, `handoff_lease_s` and "
        "`prompt_delay_s` count virtual ones, all limits that people feel or that watch over processes real ones: "
        "`[gateway]`, `[health]`, `[kvcache]`, `drain_s`, `empty_role_s`, `stall_timeout_s`, `manual_hold_s`",
        default=1.0,
        low=1e-4,
        high=1e4,
    )
    kv_shrink: int = key(
        "live: KV bytes that one byte of shared memory stands for; blocks are accounted, not filled",
        default=65_536,
        low=1,
    )
    seed: int = key("of everything random", default=0, low=0)
    drafts: int = key("tokens that MTP drafts in each decode step; 0 = off", default=1, low=0, high=3)
    acceptance: float | tuple[float, ...] = key(
        "share of drafted tokens that verification accepts; or a list, by position: `[0.85, 0.6]`, the second of those "
        "whose first was accepted",
        default=0.7,
        low=0.0,
        high=1.0,
    )
    expert_balance: ExpertBalance = key(
        "experts' load in prefill: `default` = as published with the default EPLB, `perfect` = all equal",
        default="default",
    )
    routing: str = key(
        "load of the experts in decode: a file of `cloudmatrix experts record`, or `skew` = drawn, as unequal as"
        " published of DeepSeek-R1; the busiest die then follows from the map, which `[experts]` rules; empty ="
        " experts are as unequal as the device was fitted",
        default="",
    )
    pool_gb_per_s: float = key(
        "effective rate at which one NPU loads cached blocks [GB/s]; 0 = that of the device's file, which was fitted",
        default=0.0,
        low=0.0,
    )
    jitter: float = key(
        "log-normal spread of step times: standard deviation of the logarithm", default=0.0, low=0.0, high=1.0
    )
    spike_share: float = key("share of steps that are hit by a spike", default=0.0, low=0.0, high=0.5)
    spike_factor: float = key("by how much a spike lengthens its step", default=5.0, low=1.0, high=100.0)
    model_load: ModelLoad = key(
        "where a new instance finds its weights: `pool` (UB), `storage` (OBS), or `prewarmed` = in place",
        default="pool",
    )
    start_s: float = key(
        "from the decision to a new instance that serves [s], for example `total` of `cloudmatrix decisions --starts`; "
        "0 = an engine's start and what `model_load` takes on the device",
        default=0.0,
        low=0.0,
        high=86_400.0,
    )
    warm_npus: int = key(
        "NPUs whose processes run already, without a model, for instances that start or grow: those start without the "
        "process's 30 s; what was used is there again after them",
        default=0,
        low=0,
        high=384,
    )
    graphs_s: float = key(
        "loading compiled graphs, the last phase of a start or of a change of size [s]",
        default=0.0,
        low=0.0,
        high=3600.0,
    )
    resize_pause_s: float = key(
        "a decode instance that changes its size stands still for so long [s]", default=0.5, low=0.0, high=3600.0
    )
    output_tokens: int = key(
        "live: mean length of answers to requests without `max_tokens` [tokens]; others get all that they ask for",
        default=256,
        low=1,
    )
    gateway_s: float = key(
        "what one request takes on its way in: HTTP, tokenization, hashing, routing [s]",
        default=0.002,
        low=0.0,
        high=10.0,
    )
    status_period_s: float = key(
        "how often gateways hear how full instances are [s]; in between they count what they sent",
        default=0.1,
        low=0.0,
        high=60.0,
    )
