"""Files of tenants in a work store: an item is a file, its records are the pieces of the content in their order.

A file is open while it is written, by one owner at a time, and visible to clients once it is closed. It stays an item
that is not done, because a store deletes what is done to make room for new items, and files must not be lost that way.
"""

import re
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import msgspec

from serving.errors import OverloadedError, PayloadTooLargeError, RequestError
from serving.gateway.api.work_store import WorkStore
from serving.gateway.core.work_items import LeaseLostError, WorkFullError, WorkItem

PIECE_BYTES = 1 << 20
"""Bytes of an upload in one record."""
_PIECES = 4
"""Pieces of an upload that are read at once."""
_LINES = 500
"""Lines of a result file that are read at once."""
_CLOSED = "closed"
_ID = re.compile(r"file-[0-9a-f]{24}")


class FileFacts(msgspec.Struct, frozen=True):
    """Facts of a file that are known when it is opened.

    Args:
        lines: each record is a line, as in result files; otherwise it is a piece of `PIECE_BYTES`.
    """

    filename: str
    purpose: str
    lines: bool = False


class StoredFile(msgspec.Struct, frozen=True):
    """A file as clients see it. Times are those of the store [s]."""

    file_id: str
    filename: str
    purpose: str
    size: int
    created: float
    expires: float


class FileNotFoundHereError(RequestError):
    """A file is not stored: it never was, was deleted, expired, or belongs to another tenant."""

    status = 404
    code = "file_not_found"


_decode = msgspec.json.Decoder(FileFacts).decode


class FileShelf:
    """Files of all tenants, each within its own namespace."""

    def __init__(self, store: WorkStore, largest_bytes: int) -> None:
        self._store = store
        self.largest_bytes = largest_bytes

    @property
    def place(self) -> str:
        """Where files are stored, in words."""
        return self._store.place

    @property
    def lease_s(self) -> float:
        """How long an open file stays with an owner that does not write."""
        return self._store.limits.lease_s

    # ---- clients' files ----------------------------------------------------------------------------------------------

    async def upload(self, namespace: str, filename: str, purpose: str, content: bytes) -> StoredFile:
        """Store a whole file.

        Raises: PayloadTooLargeError, OverloadedError if the namespace has too many or too large files already;
            UnavailableError.
        """
        if len(content) > self.largest_bytes:
            raise too_large(self.largest_bytes)
        file_id, owner = new_file_id(), secrets.token_hex(8)
        await self.open(namespace, file_id, FileFacts(filename, purpose), owner)
        try:
            for start in range(0, len(content), PIECE_BYTES):
                await self.append(namespace, file_id, owner, [content[start : start + PIECE_BYTES]])
            await self.close(namespace, file_id, owner)
        except BaseException:
            await self._store.delete(namespace, file_id)
            raise
        return await self.find(namespace, file_id, "file_id")

    async def find(self, namespace: str, file_id: str, param: str) -> StoredFile:
        """A closed file.

        Args:
            param: the request's field with the id.
        Raises: FileNotFoundHereError, UnavailableError.
        """
        item = await self._store.get(namespace, file_id) if _ID.fullmatch(file_id) else None
        value = None if item is None or item.state != _CLOSED else await self._store.value(namespace, file_id)
        if item is None or value is None:
            limits = self._store.limits
            raise FileNotFoundHereError(
                f"'{param}': there is no file '{file_id[:80]}' here; it never was, was deleted or has expired: files "
                f"are kept for {limits.seconds:g} s, {self.place}",
                param=param,
            )
        return self._stored(file_id, item, value)

    async def all(self, namespace: str) -> list[StoredFile]:
        """All closed files, the oldest first. Raises: UnavailableError."""
        found = []
        for file_id, item in (await self._store.items(namespace)).items():
            if item.state == _CLOSED and (value := await self._store.value(namespace, file_id)) is not None:
                found.append(self._stored(file_id, item, value))
        return sorted(found, key=lambda one: (one.created, one.file_id))

    async def delete(self, namespace: str, file_id: str) -> None:
        """Delete a closed file. Raises: FileNotFoundHereError, UnavailableError."""
        await self.find(namespace, file_id, "file_id")
        await self._store.delete(namespace, file_id)

    async def pieces(self, namespace: str, file_id: str) -> AsyncIterator[bytes]:
        """The content of a file, open or closed. Ends early if the file is deleted. Raises: UnavailableError."""
        async for records in self.records(namespace, file_id):
            yield b"".join(records)

    async def content(self, namespace: str, file_id: str) -> bytes:
        """The whole content. Raises: UnavailableError."""
        return b"".join([piece async for piece in self.pieces(namespace, file_id)])

    # ---- files that are written step by step -------------------------------------------------------------------------

    async def open(self, namespace: str, file_id: str, facts: FileFacts, owner: str) -> None:
        """Create a file. An empty owner means that anybody may claim it. Raises: OverloadedError, UnavailableError."""
        try:
            await self._store.add(namespace, file_id, msgspec.json.encode(facts), owner)
        except WorkFullError as error:
            raise self._full(error) from error

    async def claim(self, namespace: str, file_id: str, owner: str) -> bool:
        """Become the owner of an open file whose former owner has stopped. Raises: UnavailableError."""
        return await self._store.claim(namespace, file_id, owner) is not None

    async def there(self, namespace: str, file_id: str) -> bool:
        """Whether there is a file, open or closed. Raises: UnavailableError."""
        return await self._store.get(namespace, file_id) is not None

    async def append(
        self, namespace: str, file_id: str, owner: str, records: Sequence[bytes] = (), at: int | None = None
    ) -> int:
        """Append to an open file, and stay its owner.

        Args:
            at: number of the first record, see `core.work_items.appended`.
        Returns: number of its records.
        Raises: LeaseLostError; OverloadedError if there is no room; UnavailableError, then it may have been appended.
        """
        try:
            return (await self._store.append(namespace, file_id, owner, records, at=at)).records
        except WorkFullError as error:
            raise self._full(error) from error

    async def close(self, namespace: str, file_id: str, owner: str) -> bool:
        """Make a file visible, or delete it if it is empty. A second call has no effect.

        Returns: whether there is such a file now.
        Raises: LeaseLostError, UnavailableError.
        """
        item = await self._store.get(namespace, file_id)
        if item is None:
            return False
        if not item.records:
            await self._store.delete(namespace, file_id)
            return False
        if item.state != _CLOSED:
            await self._store.append(namespace, file_id, owner, state=_CLOSED)
        return True

    async def keep(self, namespace: str, file_id: str) -> None:
        """Restart the lifetime of a closed file, if it exists. Raises: UnavailableError."""
        owner = secrets.token_hex(8)
        if await self._store.claim(namespace, file_id, owner) is not None:
            await self._store.release(namespace, file_id, owner)

    async def release(self, namespace: str, file_id: str, owner: str) -> None:
        """Give up an open file, so that another owner can claim it at once. Raises: UnavailableError."""
        with suppress(LeaseLostError):
            await self._store.release(namespace, file_id, owner)

    async def discard(self, namespace: str, file_id: str) -> None:
        """Delete a file, open or closed, if there is one. Raises: UnavailableError."""
        await self._store.delete(namespace, file_id)

    async def records(self, namespace: str, file_id: str, start: int = 0) -> AsyncIterator[list[bytes]]:
        """The records of a file from number `start` on, some at a time. Raises: UnavailableError."""
        value = await self._store.value(namespace, file_id)
        most = _LINES if value is not None and _decode(value).lines else _PIECES
        while found := await self._store.records(namespace, file_id, start, most):
            yield found
            start += len(found)

    def _stored(self, file_id: str, item: WorkItem, value: bytes) -> StoredFile:
        facts, life_s = _decode(value), self._store.limits.seconds
        size = item.size - len(value)
        return StoredFile(file_id, facts.filename, facts.purpose, size, item.created, item.changed + life_s)

    def _full(self, error: OverloadedError) -> "StorageFullError":
        limits = self._store.limits
        mib = limits.size_bytes >> 20
        message = f"at most {limits.items} files of {mib} MiB together are stored for each tenant; delete some"
        return StorageFullError(message, retry_after_s=error.retry_after_s)


class StorageFullError(OverloadedError):
    """A namespace stores as many files as its limits allow."""


def new_file_id() -> str:
    """An id that no other file has."""
    return f"file-{secrets.token_hex(12)}"


def too_large(limit: int) -> PayloadTooLargeError:
    """The refusal of a file."""
    message = f"the file is larger than the limit of {limit} bytes ([batches] max_file_bytes); split it"
    return PayloadTooLargeError(message, param="file")
