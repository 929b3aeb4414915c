"""Wire models of requests: OpenAI's fields, vLLM's extensions, and the fields that are refused on purpose.

Types are strict (a number in a string is an error that names the field); `null` means absent everywhere; unknown
fields are collected for `unknown_fields`, which refuses those that would change the output of another server.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, WithJsonSchema, field_validator, model_validator

from serving.errors import InvalidRequestError
from serving.gateway.api.foreign_fields import REFUSED, TOKENIZING, Foreign
from serving.gateway.api.hints.fields import PromptCacheFields
from serving.gateway.api.http.request_ids import MAX_REQUEST_ID, usable_request_id

Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]
CacheSalt = Annotated[str, Field(min_length=1, max_length=1024)]
Priority = Annotated[int, Field(ge=-(2**31), lt=2**31)]

# Lists stop at the first bad element: a megabyte of wrong elements must not become a million error objects.
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
LogitBias = Annotated[
    dict[str, Any],  # keys and values are checked later, with the vocabulary
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}}),
]

_COUNT_OR_NOT: dict[str, Any] = {
    "anyOf": [{"type": "integer", "minimum": -1}, {"enum": [None, False]}],
    "default": None,
}
_TOOL_CHOICE: dict[str, Any] = {
    "anyOf": [{"enum": ["none", "auto", "required", None]}, {"type": "object", "required": ["type"]}],
    "default": None,
}
_FUNCTION_CALL: dict[str, Any] = {
    "anyOf": [{"enum": ["none", "auto", None]}, {"type": "object", "required": ["name"]}],
    "default": None,
}
_OUTPUT_FORM: dict[str, Any] = {
    "default": None,
    "anyOf": [
        {"type": "null"},
        {"type": "object", "maxProperties": 0},
        {"type": "object", "properties": {"type": {"enum": ["text", "json_object"]}}, "required": ["type"]},
        {
            "type": "object",
            "properties": {
                "type": {"const": "json_schema"},
                "json_schema": {"type": "object", "properties": {"schema": {"type": "object"}}},
            },
            "required": ["type", "json_schema"],
        },
        {"type": "object", "properties": {"type": {"const": "structural_tag"}}, "required": ["type"]},
    ],
}
_PROMPT_OR_MESSAGES: dict[str, Any] = {
    "oneOf": [
        {"required": [one], "properties": {one: {"not": {"type": "null"}}, other: {"type": "null"}}}
        for one, other in (("prompt", "messages"), ("messages", "prompt"))
    ]
}


def _prompt_form(value: object) -> str:
    """The prompt's form among four, by its first element, so that only that form is validated.

    The names contain a space, which distinguishes them from field names in the path of an error.
    """
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(first, str):
        return "list of texts"
    if isinstance(first, list):
        return "lists of ids"
    return "list of ids" if isinstance(value, list) else "one text"


Prompt = Annotated[
    Annotated[str, Tag("one text")]
    | Annotated[Texts, Tag("list of texts")]
    | Annotated[TokenIds, Tag("list of ids")]
    | Annotated[list[TokenIds], Field(fail_fast=True), Tag("lists of ids")],
    Discriminator(_prompt_form),
]


class WireModel(BaseModel):
    """Base of request bodies."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")
    FOREIGN: ClassVar[Mapping[str, Foreign]] = {}
    """Fields of other servers that are refused."""
    SOUGHT: ClassVar[bytes] = b""
    """Text of a body whose parts are searched for a rare key; empty = none are."""


def check_request_id(value: str | None) -> str | None:
    """A client's own id, unchanged.

    Raises: InvalidRequestError if it is not a valid id.
    """
    if value is not None and usable_request_id(value) is None:
        message = f"'request_id' must have 1 to {MAX_REQUEST_ID} printable ASCII characters"
        raise InvalidRequestError(message, param="request_id", code="invalid_value")
    return value


class StreamOptions(WireModel):
    """Content of a stream in addition to text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(WireModel):
    """Selection of tokens and end of the output, by the same names in several bodies."""

    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Probability | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100.0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    seed: Seed | None = None
    stop: str | Texts | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    structured_outputs: dict[str, Any] | None = None
    allowed_token_ids: TokenIds | None = None
    bad_words: Texts | None = None


class GenerationRequest(PromptCacheFields, SamplingFields):
    """Fields common to chat and completions."""

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    prompt_logprobs: Annotated[int, Field(ge=-1)] | None = None
    logprob_token_ids: TokenIds | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    return_replicas: bool | None = None
    add_special_tokens: bool | None = None
    cache_salt: CacheSalt | None = None
    priority: Priority | None = None
    request_id: str | None = None
    user: str | None = None

    response_format: Annotated[Any, WithJsonSchema(_OUTPUT_FORM)] = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: Texts | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    guided_whitespace_pattern: str | None = None

    FOREIGN: ClassVar[Mapping[str, Foreign]] = REFUSED

    _request_id_is_usable = field_validator("request_id")(check_request_id)

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("'stream_options' is only allowed with 'stream': true", param="stream_options")
        return self


class ChatMessage(BaseModel):
    """One message; further keys (name, tool_calls, reasoning_content ...) are passed to the template unchanged."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")

    role: str
    content: str | list[Any] | None = None


class ChatTemplateFields(WireModel):
    """Conversion of messages to a prompt; shared by chat and /tokenize."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class ChatCompletionRequest(GenerationRequest, ChatTemplateFields):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=-1)] | None = None
    echo: bool | None = None
    reasoning_effort: str | None = None
    tools: list[Any] | None = None
    tool_choice: Annotated[Any, WithJsonSchema(_TOOL_CHOICE)] = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: Annotated[Any, WithJsonSchema(_FUNCTION_CALL)] = None
    include_reasoning: bool | None = None
    thinking_token_budget: Annotated[int, Field(ge=0, lt=2**20)] | None = None


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: Prompt
    echo: bool | None = None
    logprobs: Annotated[Annotated[int, Field(ge=-1)] | None, WithJsonSchema(_COUNT_OR_NOT)] = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    suffix: str | None = None

    @field_validator("logprobs", mode="before")
    @classmethod
    def _chat_has_a_switch(cls, value: object) -> object:
        return None if value is False else value

    def refuse_unsupported(self) -> None:
        """Refuse fill-in-the-middle and best-of selection.

        Raises: InvalidRequestError naming the field.
        """
        if self.suffix:
            raise InvalidRequestError(
                "'suffix' is not supported by this model; leave it out", param="suffix", code="unsupported_parameter"
            )
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise InvalidRequestError(
                "'best_of' must equal 'n'; selection among more candidates is not supported",
                param="best_of",
                code="unsupported_parameter",
            )


class TokenizeRequest(ChatTemplateFields):
    """POST /tokenize: a prompt, or messages as for chat."""

    model_config = ConfigDict(json_schema_extra=_PROMPT_OR_MESSAGES)

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(fail_fast=True)] | None = None
    tools: list[Any] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    FOREIGN: ClassVar[Mapping[str, Foreign]] = TOKENIZING


class DetokenizeRequest(WireModel):
    """POST /detokenize."""

    model: str | None = None
    tokens: TokenIds

    FOREIGN: ClassVar[Mapping[str, Foreign]] = TOKENIZING


class PoolAuditRequest(WireModel):
    """POST /pool/audit."""

    repair: bool = False


class CacheQuery(WireModel):
    """POST /query: Mooncake's conductor."""

    model: str | None = None
    block_size: Annotated[int, Field(ge=1)]
    token_ids: TokenIds
    tenant_id: str | None = None
    instance_id: str | None = None
    cache_salt: CacheSalt | None = None

    FOREIGN: ClassVar[Mapping[str, Foreign]] = {
        "lora_name": Foreign(neutral=(None, "")),
        "lora_id": Foreign(neutral=(None, -1)),
    }


class PoolNamespaceRequest(WireModel):
    """POST /pool/namespaces/{name}: absent fields keep their values."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["quota_mib"]}, {"required": ["weight"]}]})

    quota_mib: Annotated[int, Field(ge=0, le=2**40)] | None = None
    weight: Annotated[float, Field(ge=0.01, le=100.0)] | None = None


class ResizeGroupsRequest(WireModel):
    """POST /experts/resize."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["ranks"]}, {"required": ["expert_ranks"]}]})

    pool: Annotated[str, Field(max_length=64)]
    ranks: Annotated[int, Field(ge=1, le=64)] | None = None
    expert_ranks: Annotated[int, Field(ge=1, le=64)] | None = None


class DrainRankRequest(WireModel):
    """POST /experts/drain."""

    rank: Annotated[str, Field(max_length=256)]


class SwitchRoleRequest(WireModel):
    """POST /experts/switch."""

    rank: Annotated[str, Field(max_length=256)]
    role: Literal["attention", "experts"]


class AbortRequests(WireModel):
    """POST /abort_requests, as vLLM names it."""

    request_ids: Annotated[list[Annotated[str, Field(max_length=MAX_REQUEST_ID)]], Field(min_length=1, max_length=1000)]
