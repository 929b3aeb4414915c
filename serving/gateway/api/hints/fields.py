"""Fields of requests that carry KV hints: vLLM's envelope, and OpenAI's prompt cache.

The envelope is that of vLLM, SGLang and TensorRT-LLM, which leave payloads open; ours are described in
docs/guides/kv-hints.md.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from serving.gateway.core.kv_hints import MOST_ACTIONS, AskedAction

_Name = Annotated[str, Field(min_length=1, max_length=128)]
Version = Annotated[str, Field(pattern=r"^[01](\.[0-9]{1,4}){0,2}$")]


class HintActionBody(BaseModel):
    """One action of an envelope."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")

    action_id: _Name
    action_type: _Name
    action_version: Annotated[str, Field(max_length=16)] = "1.0"
    payload: dict[str, Any] = Field(default_factory=dict)


Actions = Annotated[list[HintActionBody], Field(max_length=MOST_ACTIONS, fail_fast=True)]


class KvHintsEnvelope(BaseModel):
    """Actions on the cached prompts of sessions."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid")

    protocol_version: Version
    message_id: _Name
    actions: Actions


def asked_actions(actions: list[HintActionBody], place: str) -> list[AskedAction]:
    """The actions for the core.

    Args:
        place: path of the list in the request.
    """
    return [
        AskedAction(f"{place}[{index}]", one.action_id, one.action_type, one.action_version, one.payload)
        for index, one in enumerate(actions)
    ]


class PromptCacheOptions(BaseModel):
    """OpenAI's options of the prompt cache, for models from GPT-5.6 on."""

    model_config = ConfigDict(strict=True, extra="forbid")

    mode: Literal["implicit", "explicit"] = "implicit"
    ttl: Literal["30m"] = "30m"


class HintFields(BaseModel):
    """Fields of every generating route."""

    kv_hints: KvHintsEnvelope | None = None
    return_kv_hints: bool | None = None


class PromptCacheFields(HintFields):
    """Fields of OpenAI's routes."""

    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    prompt_cache_options: PromptCacheOptions | None = None


TTL_S = {"in_memory": 600.0, "in-memory": 600.0, "24h": 86_400.0, "30m": 1800.0, "5m": 300.0, "1h": 3600.0}
"""Seconds of each time to live that OpenAI and Anthropic name; in memory, OpenAI keeps a prompt for 5 to 10 minutes."""
