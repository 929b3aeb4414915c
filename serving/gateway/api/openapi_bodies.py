"""Every request body that `/openapi.json` describes, by name."""

from typing import Literal

from serving.gateway.api.messages_schema import CountTokensRequest, MessagesRequest
from serving.gateway.api.responses_schema import ResponsesRequest
from serving.gateway.api.schema import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    PoolAuditRequest,
    PoolNamespaceRequest,
    TokenizeRequest,
    WireModel,
)
from serving.gateway.api.tokens_schema import GenerateTokensRequest

OpenApiKind = Literal[
    "ChatCompletionRequest",
    "CompletionRequest",
    "ResponsesRequest",
    "MessagesRequest",
    "CountTokensRequest",
    "GenerateTokensRequest",
    "TokenizeRequest",
    "DetokenizeRequest",
    "PoolAuditRequest",
    "PoolNamespaceRequest",
]
BODIES: dict[OpenApiKind, type[WireModel]] = {
    "ChatCompletionRequest": ChatCompletionRequest,
    "CompletionRequest": CompletionRequest,
    "ResponsesRequest": ResponsesRequest,
    "MessagesRequest": MessagesRequest,
    "CountTokensRequest": CountTokensRequest,
    "GenerateTokensRequest": GenerateTokensRequest,
    "TokenizeRequest": TokenizeRequest,
    "DetokenizeRequest": DetokenizeRequest,
    "PoolAuditRequest": PoolAuditRequest,
    "PoolNamespaceRequest": PoolNamespaceRequest,
}
