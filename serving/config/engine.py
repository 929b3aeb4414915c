"""Settings of every instance in any pool."""

from dataclasses import dataclass
from typing import Literal

from serving.config.key import key
from serving.config.simulation import Executor

ServingMode = Literal["disaggregated", "aggregated"]
HandoffPlace = Literal["any", "prefer_host"]
KvDtype = Literal["auto", "int8"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`[engine]`"""

    executor: Executor = key(
        "`native` = the compiled step, on CPUs; `torch` = torch operators; `auto` = native where it can be, else "
        "torch; `simulated` = take the predicted time, give placeholders, see `[simulation]`",
        default="auto",
    )
    block_tokens: int = key("tokens of one KV block", default=16, low=1, high=1024)
    kv_dtype: KvDtype = key(
        "how KV blocks are stored; `auto` = in the model's type; `int8` = latents in bytes with one scale per token "
        "and layer, rope keys in the model's type",
        default="auto",
    )
    draft_tokens: int = key(
        "most tokens that a step guesses for each sequence with the model's draft layer (MTP), to be verified in the "
        "next step; 0 = none; the engine guesses fewer, or none, where it does not pay; never changes what is "
        "generated",
        default=0,
        low=0,
        high=3,
    )
    forced_tokens: int = key(
        "most tokens that a step guesses for each sequence where its grammar leaves one way on, as between the keys of "
        "a JSON object, to be verified in the next step, with MTP or without; 0 = none; native step only; never "
        "changes what is generated",
        default=8,
        low=0,
        high=32,
    )
    max_model_len: int = key("longest prompt plus output [tokens]; 0 = the model's own", default=0, low=0)
    prompt_delay_s: float = key(
        "a prompt's turn comes so much later for every 1,000 of its tokens [s], so a short one passes a long one that "
        "came shortly before, and none is passed for ever; 0 = strictly in order of arrival",
        default=0.1,
        low=0.0,
        high=60.0,
    )
    prefix_reuse: bool = key(
        "reuse KV blocks of equal prompt beginnings: inside an instance, and from the KV-cache pool; without, that "
        "keeps no blocks, only weights",
        default=True,
    )
    handoff_lease_s: float = key(
        "how long prefill keeps blocks that decode has not pulled yet [s]", default=60.0, low=0.1, high=3600
    )
    drain_s: float = key(
        "an instance that leaves lets its streams go on for so long, as some end soon, then hands them to others [s]",
        default=5.0,
        low=0.0,
        high=3600,
    )
    empty_role_s: float = key(
        "without any decode instance for this long, prefill instances decode too [s]", default=2.0, low=0.0, high=3600
    )
    stall_timeout_s: float = key(
        "an engine with work that makes no step for this long is replaced [s]", default=30.0, low=0.5, high=3600
    )
    max_attempts: int = key(
        "failures in a row, without a new token in between, before the client sees an error", default=3, low=1, high=20
    )
    decision_log: str = key(
        "folder for a log of every decision, to be replayed (`cloudmatrix replay`), relative to this file; it holds "
        "prompts and answers; empty = none",
        default="",
    )
    threads: int = key(
        "compute threads per instance or rank; 0 = cores less one, by instances and ranks", default=0, low=0, high=1024
    )


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """`[serving]`"""

    mode: ServingMode = key(
        "`disaggregated` = prefill and decode pools; `aggregated` = one pool does both", default="disaggregated"
    )
    handoff: HandoffPlace = key(
        "which decode instance takes a sequence: `any` = the one with room and the least to do, on whatever host; "
        "`prefer_host` = the same, but of those within 5 % of the least one on the host where the prompt was computed",
        default="any",
    )
