"""Bodies and answers of `/v1/files` and `/v1/batches`, with OpenAI's names."""

from typing import Annotated, Literal

from pydantic import Field

from serving.gateway.api.answers import Answer
from serving.gateway.api.schema import WireModel

WINDOW = "24h"
WINDOW_S = 86_400.0
_MetadataKey = Annotated[str, Field(max_length=64)]
_MetadataValue = Annotated[str, Field(max_length=512)]


class BatchRequest(WireModel):
    """POST /v1/batches."""

    input_file_id: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]
    completion_window: Literal["24h"]
    metadata: Annotated[dict[_MetadataKey, _MetadataValue], Field(max_length=16)] | None = None


class FileAnswer(Answer):
    """A file. Times are Unix times [s]."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]


class FileList(Answer):
    """GET /v1/files."""

    object: Literal["list"]
    data: list[FileAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(Answer):
    """DELETE /v1/files/{file_id}."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


class BatchErrorDetail(Answer):
    """Why a batch failed. `line` counts from 1."""

    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrors(Answer):
    """The first errors of an input file."""

    object: Literal["list"]
    data: list[BatchErrorDetail]


class BatchCounts(Answer):
    """Lines of the input file: all, those with a response, and those in the error file."""

    total: int
    completed: int
    failed: int


class BatchAnswer(Answer):
    """A batch. Times are Unix times [s]; null = not reached."""

    id: str
    object: Literal["batch"]
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    metadata: dict[str, str] | None


class BatchList(Answer):
    """GET /v1/batches."""

    object: Literal["list"]
    data: list[BatchAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool
