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

OpenApiKind = Literal[
    "ChatCompletionRequest",
    "CompletionRequest",
    "ResponsesRequest",
    "MessagesRequest",
    "CountTokensRequest",
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
    "TokenizeRequest": TokenizeRequest,
    "DetokenizeRequest": DetokenizeRequest,
    "PoolAuditRequest": PoolAuditRequest,
    "PoolNamespaceRequest": PoolNamespaceRequest,
}
