"""Batches of tenants in a work store: an item is a batch, its text of state is the batch's state as JSON.

The results of lines are not records of the batch but of its output and error files, so that each is stored once. Both
files are created with the batch, are written by the gateway that runs it, and become visible at its end.
"""

import re
import secrets
import time
from collections.abc import Callable
from typing import Any

import msgspec

from serving.errors import InvalidRequestError, RequestError
from serving.gateway.api.batches.files import FileFacts, FileShelf, StorageFullError, new_file_id
from serving.gateway.api.batches.schema import WINDOW, WINDOW_S, BatchRequest
from serving.gateway.api.http.errors import RouteError
from serving.gateway.api.http.tenant import Tenant
from serving.gateway.api.settings import ApiSettings
from serving.gateway.api.work_store import MemoryWorkStore, WorkStore
from serving.gateway.core.batches import BatchSpec, BatchState, BatchStatus
from serving.gateway.core.work_items import WorkFullError, WorkItem

INPUT = "batch"
OUTPUT = "batch_output"
"""OpenAI's purposes of files."""
_ID = re.compile(r"batch_[0-9a-f]{24}")

Json = dict[str, Any]


class BatchNotFoundError(RequestError):
    """A batch is not stored: it never was, expired, or belongs to another tenant."""

    status = 404
    code = "batch_not_found"


decode_spec = msgspec.json.Decoder(BatchSpec).decode
_decode_state = msgspec.json.Decoder(BatchState).decode


def state_of_item(item: WorkItem) -> BatchState:
    """The stored state of a batch; a batch that no gateway has taken has none yet."""
    return _decode_state(item.state) if item.state else BatchState()


def state_text(state: BatchState) -> str:
    """A state as it is stored."""
    return msgspec.json.encode(state).decode()


def batch_shelf_in_memory(settings: ApiSettings, clock: Callable[[], float] = time.time) -> "BatchShelf":
    """Batches and files of one gateway, which are lost with it."""
    files = FileShelf(MemoryWorkStore(settings.files, clock), settings.max_file_bytes)
    return BatchShelf(MemoryWorkStore(settings.batches, clock), files, clock)


class BatchShelf:
    """Batches of all tenants, each within its own namespace.

    Args:
        clock: Unix time [s].
    """

    def __init__(self, store: WorkStore, files: FileShelf, clock: Callable[[], float]) -> None:
        self.store = store
        self.files = files
        self._clock = clock
        self.stirred: Callable[[], None] = lambda: None
        """Called when a batch was added or cancelled."""

    @property
    def warning(self) -> str | None:
        """A sentence for clients whose batches are in one gateway only; None = all gateways share them."""
        if isinstance(self.store, MemoryWorkStore):
            return f"files and batches are kept {self.store.place}, and are lost with it"
        return None

    async def create(self, tenant: Tenant, body: BatchRequest) -> Json:
        """Add a batch, which any gateway may then run.

        Raises: FileNotFoundHereError, InvalidRequestError, OverloadedError, UnavailableError.
        """
        found = await self.files.find(tenant.namespace, body.input_file_id, "input_file_id")
        if found.purpose != INPUT:
            message = f"'input_file_id' names a file with the purpose '{found.purpose}'; it must be '{INPUT}'"
            raise InvalidRequestError(message, param="input_file_id", code="invalid_purpose")
        spec = BatchSpec(
            batch_id=f"batch_{secrets.token_hex(12)}",
            namespace=tenant.namespace,
            key=tenant.key,
            weight=tenant.weight,
            endpoint=body.endpoint,
            input_file_id=found.file_id,
            output_file_id=new_file_id(),
            error_file_id=new_file_id(),
            created=self._clock(),
            window_s=WINDOW_S,
            metadata=body.metadata,
        )
        await self.files.keep(tenant.namespace, found.file_id)
        item = await self._add(spec)
        self.stirred()
        return _as_answer(spec, item)

    async def find(self, namespace: str, batch_id: str) -> Json:
        """A batch. Raises: BatchNotFoundError, UnavailableError."""
        spec, item = await self._find(namespace, batch_id)
        return _as_answer(spec, item)

    async def all(self, namespace: str) -> list[Json]:
        """All batches, the oldest first. Raises: UnavailableError."""
        found = [(spec.created, spec.batch_id, _as_answer(spec, item)) for spec, item in await self._all(namespace)]
        return [answer for *_, answer in sorted(found, key=lambda one: one[:2])]

    async def cancel(self, namespace: str, batch_id: str) -> Json:
        """Cancel a batch; lines that run are stopped, and those with a result remain.

        Raises: BatchNotFoundError, UnavailableError; RouteError with 409 if it has ended.
        """
        spec, item = await self._find(namespace, batch_id)
        state = state_of_item(item)
        if item.done or not state.cancellable:
            raise RouteError(409, f"a batch that is {state.status} cannot be cancelled", "batch_ended")
        item = await self.store.cancel(namespace, batch_id) or item
        self.stirred()
        return _as_answer(spec, item)

    async def delete_file(self, namespace: str, file_id: str) -> None:
        """Delete a file that no batch needs any more.

        Raises: FileNotFoundHereError, UnavailableError; RouteError with 409 if it is the input of a running batch.
        """
        for spec, item in await self._all(namespace):
            if spec.input_file_id == file_id and not item.done:
                message = f"the file is the input of '{spec.batch_id}', which runs; cancel that batch first"
                raise RouteError(409, message, "file_in_use")
        await self.files.delete(namespace, file_id)

    async def _add(self, spec: BatchSpec) -> WorkItem:
        namespace, name = spec.namespace, spec.batch_id
        opened = []
        try:
            for file_id, kind in ((spec.output_file_id, "output"), (spec.error_file_id, "error")):
                await self.files.open(namespace, file_id, FileFacts(f"{name}_{kind}.jsonl", OUTPUT, lines=True), "")
                opened.append(file_id)
            return await self.store.add(namespace, name, msgspec.json.encode(spec), "")
        except BaseException as error:
            for file_id in opened:
                await self.files.discard(namespace, file_id)
            if isinstance(error, WorkFullError):
                most = self.store.limits.items
                message = f"{most} batches of this tenant have not ended yet, as many as may be"
                raise StorageFullError(message, retry_after_s=error.retry_after_s) from error
            raise

    async def _find(self, namespace: str, batch_id: str) -> tuple[BatchSpec, WorkItem]:
        item = await self.store.get(namespace, batch_id) if _ID.fullmatch(batch_id) else None
        value = None if item is None else await self.store.value(namespace, batch_id)
        if item is None or value is None:
            raise BatchNotFoundError(
                f"'batch_id': there is no batch '{batch_id[:80]}' here; it never was or has expired: batches are kept "
                f"for {self.store.limits.seconds:g} s, {self.store.place}",
                param="batch_id",
            )
        return decode_spec(value), item

    async def _all(self, namespace: str) -> list[tuple[BatchSpec, WorkItem]]:
        found = []
        for name, item in (await self.store.items(namespace)).items():
            if (value := await self.store.value(namespace, name)) is not None:
                found.append((decode_spec(value), item))
        return found


def _as_answer(spec: BatchSpec, item: WorkItem) -> Json:
    """A batch as OpenAI describes it."""
    state = state_of_item(item)
    status = state.status
    if item.cancelled and status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
        status = BatchStatus.CANCELLING  # its gateway will notice shortly
    times = {
        f"{name}_at": None if (at := state.times.get(name)) is None else int(at)
        for name in BatchStatus
        if name is not BatchStatus.VALIDATING
    }
    errors = [msgspec.structs.asdict(one) for one in state.errors]
    return {
        "id": spec.batch_id,
        "object": "batch",
        "endpoint": spec.endpoint,
        "errors": {"object": "list", "data": errors} if errors else None,
        "input_file_id": spec.input_file_id,
        "completion_window": WINDOW,
        "status": status,
        "output_file_id": spec.output_file_id if state.has_output else None,
        "error_file_id": spec.error_file_id if state.has_errors else None,
        "created_at": int(spec.created),
        "expires_at": int(spec.expires),
        **times,
        "request_counts": {"total": state.total, "completed": state.completed, "failed": state.failed},
        "metadata": spec.metadata,
    }
