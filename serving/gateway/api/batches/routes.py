"""`/v1/files` and `/v1/batches`, with OpenAI's answers."""

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from serving.errors import InvalidRequestError
from serving.gateway.api.batches.files import StoredFile, too_large
from serving.gateway.api.batches.multipart import FormPart, boundary_of, parse_form
from serving.gateway.api.batches.schema import BatchAnswer, BatchList, BatchRequest, FileAnswer, FileDeleted, FileList
from serving.gateway.api.batches.shelf import INPUT, OUTPUT, BatchShelf
from serving.gateway.api.body import announced_bytes, parse_body, read_body
from serving.gateway.api.http.paging import page_of, page_parameters, query_parameter, wrong_parameter
from serving.gateway.api.http.tenant import tenant_of
from serving.gateway.api.openapi import BODY_ERRORS, answers
from serving.gateway.api.routes import RouteServices, json_response, request_body
from serving.gateway.api.unknown_fields import WARNING_HEADER, printable

_BODY_BYTES = 64 << 10
_FORM_BYTES = 64 << 10
"""Bytes of a form besides its file."""
_LONGEST_FILENAME = 255
_FILES_OF_A_PAGE = 10_000
_BATCHES_OF_A_PAGE = 20
_MOST_BATCHES_OF_A_PAGE = 100
_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["purpose", "file"],
                    "properties": {
                        "purpose": {"enum": [INPUT], "description": "What the file is for."},
                        "file": {"type": "string", "format": "binary", "description": "Requests, one JSON per line."},
                    },
                }
            }
        },
    }
}
_FILES_LISTING = page_parameters(_FILES_OF_A_PAGE, _FILES_OF_A_PAGE)
_FILES_LISTING["parameters"].append(query_parameter("purpose", {"enum": [INPUT, OUTPUT]}))
_CONTENT = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


def files_router(shelf: BatchShelf) -> APIRouter:
    """Routes of files, each accessible to its own namespace only."""
    router = APIRouter(prefix="/v1/files", tags=["batches"])
    files = shelf.files

    @router.post("", openapi_extra=_FORM, responses=answers(FileAnswer, 429, *BODY_ERRORS))
    async def upload(request: Request) -> Response:
        """Store the input of a batch."""
        boundary = boundary_of(request.headers.get("content-type", ""))
        if announced_bytes(request) > files.largest_bytes + _FORM_BYTES:
            raise too_large(files.largest_bytes)
        body = await read_body(request, files.largest_bytes + _FORM_BYTES)
        fields = await asyncio.to_thread(parse_form, body, boundary)
        purpose, file = _upload_of(fields)
        request.state.ignored_fields = [printable(name) for name in fields if name not in ("purpose", "file")]
        name = (file.filename or "")[:_LONGEST_FILENAME]
        stored = await files.upload(tenant_of(request).namespace, name, purpose, file.content)
        return _warned(json_response(_file_answer(stored)), shelf, request)

    @router.get("", openapi_extra=_FILES_LISTING, responses=answers(FileList, 400))
    async def listing(request: Request) -> Response:
        """Files, latest first."""
        purpose = request.query_params.get("purpose")
        if purpose not in (None, INPUT, OUTPUT):
            raise wrong_parameter("purpose", f"must be {INPUT} or {OUTPUT}")
        found = await files.all(tenant_of(request).namespace)
        entries = [_file_answer(one) for one in found if purpose in (None, one.purpose)]
        return json_response(page_of(request, entries, _FILES_OF_A_PAGE, _FILES_OF_A_PAGE))

    @router.get("/{file_id}", responses=answers(FileAnswer, 404))
    async def one(request: Request, file_id: str) -> Response:
        """A file, without its content."""
        return json_response(_file_answer(await files.find(tenant_of(request).namespace, file_id, "file_id")))

    @router.get("/{file_id}/content", response_class=Response, responses=answers(None, 404, content=_CONTENT))
    async def content(request: Request, file_id: str) -> Response:
        """The content of a file."""
        namespace = tenant_of(request).namespace
        found = await files.find(namespace, file_id, "file_id")
        headers = {"content-length": str(found.size)}  # so that a client notices if the file is deleted meanwhile
        return StreamingResponse(files.pieces(namespace, file_id), 200, headers, "application/octet-stream")

    @router.delete("/{file_id}", responses=answers(FileDeleted, 404, 409))
    async def delete(request: Request, file_id: str) -> Response:
        """Delete a file. 409 while a batch that needs it runs."""
        await shelf.delete_file(tenant_of(request).namespace, file_id)
        return json_response({"id": file_id, "object": "file", "deleted": True})

    return router


def batches_router(endpoint: RouteServices, shelf: BatchShelf) -> APIRouter:
    """Routes of batches, each accessible to its own namespace only."""
    router = APIRouter(prefix="/v1/batches", tags=["batches"])

    @router.post("", openapi_extra=request_body("BatchRequest"), responses=answers(BatchAnswer, 404, 429, *BODY_ERRORS))
    async def create(request: Request) -> Response:
        """Run the requests of a file when no other request waits, within 24 hours."""
        body = await parse_body(request, BatchRequest, _BODY_BYTES)
        tenant = endpoint.weights.apply(tenant_of(request))
        return _warned(json_response(await shelf.create(tenant, body)), shelf, request)

    @router.get(
        "",
        openapi_extra=page_parameters(_BATCHES_OF_A_PAGE, _MOST_BATCHES_OF_A_PAGE),
        responses=answers(BatchList, 400),
    )
    async def listing(request: Request) -> Response:
        """Batches, latest first."""
        entries = await shelf.all(tenant_of(request).namespace)
        return json_response(page_of(request, entries, _BATCHES_OF_A_PAGE, _MOST_BATCHES_OF_A_PAGE))

    @router.get("/{batch_id}", responses=answers(BatchAnswer, 404))
    async def one(request: Request, batch_id: str) -> Response:
        """A batch."""
        return json_response(await shelf.find(tenant_of(request).namespace, batch_id))

    @router.post("/{batch_id}/cancel", responses=answers(BatchAnswer, 404, 409))
    async def cancel(request: Request, batch_id: str) -> Response:
        """Cancel a batch. Its results so far remain. 409 if it has ended."""
        return json_response(await shelf.cancel(tenant_of(request).namespace, batch_id))

    return router


def _upload_of(fields: dict[str, FormPart]) -> tuple[str, FormPart]:
    """The purpose and the file of a form.

    Raises: InvalidRequestError, which names the field.
    """
    for name in ("purpose", "file"):
        if name not in fields:
            message = f"missing required field '{name}'"
            raise InvalidRequestError(message, param=name, code="missing_required_parameter")
    purpose, file = fields["purpose"].content.decode("utf-8", "replace"), fields["file"]
    if purpose != INPUT:
        message = f"'purpose' is '{purpose[:40]}'; this server stores files for '{INPUT}' only"
        raise InvalidRequestError(message, param="purpose", code="invalid_purpose")
    if not file.content:
        raise InvalidRequestError("'file' is empty; send one request as JSON per line", param="file", code="empty_file")
    return purpose, file


def _file_answer(stored: StoredFile) -> dict[str, Any]:
    return {
        "id": stored.file_id,
        "object": "file",
        "bytes": stored.size,
        "created_at": int(stored.created),
        "expires_at": int(stored.expires),
        "filename": stored.filename,
        "purpose": stored.purpose,
        "status": "processed",
    }


def _warned(response: Response, shelf: BatchShelf, request: Request) -> Response:
    """Tell the client where its work is kept, unless a header already names fields that are ignored."""
    if shelf.warning is not None and not request.state.ignored_fields:
        response.headers[WARNING_HEADER] = shelf.warning
    return response
