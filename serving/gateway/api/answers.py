"""Wire models of responses, used only for `/openapi.json`: responses are built as plain objects, tests compare the two.

A field with a default is omitted when it has no value; one that may be null is always sent.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Finish = Literal["stop", "length", "tool_calls", "function_call"]
Count = Annotated[int, Field(ge=0)]
Ids = list[Count]


class Answer(BaseModel):
    """Base of responses: no field is sent that is not described."""

    model_config = ConfigDict(extra="forbid")


class ErrorDetail(Answer):
    """Error: message, kind, and the field of the request that caused it."""

    message: str
    type: Literal[
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "not_found_error",
        "rate_limit_error",
        "timeout_error",
        "server_error",
    ]
    param: str | None
    code: str | None


class ErrorAnswer(Answer):
    """Every response that is not a success; within a stream, the event before the end."""

    error: ErrorDetail


class Ready(Answer):
    """GET /ready."""

    status: Literal["ready"]


class Version(Answer):
    """GET /version."""

    version: str


class Load(Answer):
    """GET /load."""

    server_load: Count


class ModelCard(Answer):
    """One served name."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: Count
    permission: list[Any]


class ModelList(Answer):
    """GET /v1/models."""

    object: Literal["list"]
    data: list[ModelCard]


class Tokenized(Answer):
    """POST /tokenize."""

    count: Count
    max_model_len: Count
    tokens: Ids
    token_strs: list[str] | None


class Detokenized(Answer):
    """POST /detokenize."""

    prompt: str


class PromptTokensDetails(Answer):
    """Prompt tokens that were not computed; with a KV-cache pool also those pulled and recomputed, and those that a
    request with a claim added to the cache.
    """

    cached_tokens: Count
    cache_write_tokens: Count = 0
    pulled_tokens: Count = 0
    recomputed_tokens: Count = 0
    recompute_reasons: dict[str, Count] = {}


class PredictionPosition(Answer):
    """Draft tokens of one position of a step."""

    accepted: Count
    rejected: Count


class CompletionTokensDetails(Answer):
    """Reasoning tokens, and accepted and rejected draft tokens."""

    reasoning_tokens: Count = 0
    accepted_prediction_tokens: Count = 0
    rejected_prediction_tokens: Count = 0
    prediction_positions: list[PredictionPosition] = []


MASKED_TOKENS = (
    "Tokens, of the prompt too, computed while experts of a lost rank were masked (`[experts] on_loss`): the output "
    "may differ from that of a complete instance."
)


class Usage(Answer):
    """Tokens of a request."""

    prompt_tokens: Count
    total_tokens: Count
    completion_tokens: Count
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | None = None
    resumptions: Count = 0
    masked_tokens: Count = Field(default=0, description=MASKED_TOKENS)


class Times(Answer):
    """Times of a request with one choice [ms]."""

    time_to_first_token_ms: float = Field(
        description="All that the client waited: from the arrival of the request, with all queues, to the first token."
    )
    generation_time_ms: float = Field(description="From the first token to the last.")
    queue_time_ms: float | None = Field(
        None, description="Part of the time to the first token: until an instance started the prompt."
    )
    mean_itl_ms: float | None = Field(None, description="Mean time between two tokens; with two tokens or more.")
    tokens_per_second: float | None = Field(
        None, description="Tokens of the answer over the time from the end of the queue to the last token."
    )


class PromptLogprob(Answer):
    """Alternative to one prompt token."""

    logprob: float
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class TopLogprob(Answer):
    """One token with its text, or for part of a character its escaped bytes."""

    token: str
    logprob: float
    bytes: list[Annotated[int, Field(ge=0, le=255)]]


class TokenLogprob(TopLogprob):
    """A token of the response, with its alternatives."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer):
    """One entry per token."""

    content: list[TokenLogprob]
    refusal: None


class CompletionLogprobs(Answer):
    """Parallel lists with one entry per token. Part of a character is written as `bytes:` and its escaped bytes."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[Count]


class CalledFunction(Answer):
    """Function to call, with its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(Answer):
    """One call."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class CalledCustom(Answer):
    """Custom tool to call, with its text."""

    name: str
    input: str


class CustomToolCall(Answer):
    """One call of a custom tool."""

    id: str
    type: Literal["custom"]
    custom: CalledCustom


class AssistantMessage(Answer):
    """The model's turn. Reasoning has two names."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall | CustomToolCall] = []
    function_call: CalledFunction | None = None


class ChatChoice(Answer):
    """One choice of a chat response."""

    index: Count
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    stop_reason: str | int | None
    token_ids: Ids = []


class _Head(Answer):
    """Common fields of every generation's response. `replicas` are sent with the usage."""

    id: str
    created: int
    model: str
    system_fingerprint: str | None = None
    replicas: list[str] = []


class ChatCompletion(_Head):
    """POST /v1/chat/completions without `stream`."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    metrics: Times | None = None
    prompt_token_ids: Ids = []
    prompt_logprobs: PromptLogprobs = []


class CompletionChoice(Answer):
    """One text."""

    index: Count
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish
    stop_reason: str | int | None
    token_ids: Ids = []
    prompt_token_ids: Ids = []
    prompt_logprobs: PromptLogprobs = []


class Completion(_Head):
    """POST /v1/completions without `stream`."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage
    metrics: Times | None = None


class CalledFunctionDelta(Answer):
    """Increment of a called function: its name first, then pieces of its arguments."""

    name: str = ""
    arguments: str = ""


class ToolCallDelta(Answer):
    """Increment of a call; the first one has the id."""

    index: Count
    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunctionDelta


class CalledCustomDelta(Answer):
    """Increment of a called custom tool: its name first, then pieces of its text."""

    name: str = ""
    input: str = ""


class CustomToolCallDelta(Answer):
    """Increment of a custom tool's call; the first one has the id."""

    index: Count
    id: str = ""
    type: Literal["custom"] = "custom"
    custom: CalledCustomDelta


class Delta(Answer):
    """Increment of a message in one chunk."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallDelta | CustomToolCallDelta] = []
    function_call: CalledFunctionDelta | None = None


class ChatChunkChoice(Answer):
    """Increment of a choice in one chunk."""

    index: Count
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None
    stop_reason: str | int | None = None
    token_ids: Ids = []


class ChatCompletionChunk(_Head):
    """One event of a chat's stream."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    metrics: Times | None = None
    prompt_token_ids: Ids = []


class CompletionChunkChoice(Answer):
    """Increment of a text in one chunk."""

    index: Count
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None
    stop_reason: str | int | None = None
    token_ids: Ids = []


class CompletionChunk(_Head):
    """One event of a completion's stream."""

    object: Literal["text_completion"]
    choices: list[CompletionChunkChoice]
    usage: Usage | None = None
    metrics: Times | None = None
