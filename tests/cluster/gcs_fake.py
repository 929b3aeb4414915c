"""Ray's control store in memory, which can stop responding."""

import threading


class FakeGcs:
    """Implements `KeyValues`. While `away` a call waits for `back`, ignoring its deadline, or raises `error`."""

    def __init__(self) -> None:
        self.kept: dict[tuple[bytes, bytes], bytes] = {}
        self.back = threading.Event()
        self.back.set()
        self.error: Exception | None = None
        self.waiting = 0

    def _answer(self) -> None:
        self.waiting += 1
        self.back.wait(60.0)
        self.waiting -= 1
        if self.error is not None:
            raise self.error

    def internal_kv_get(self, key: bytes, space: bytes, timeout: float, /) -> bytes | None:
        """Implements `KeyValues`."""
        self._answer()
        return self.kept.get((space, key))

    def internal_kv_put(self, key: bytes, value: bytes, overwrite: bool, space: bytes, timeout: float, /) -> int:
        """Implements `KeyValues`."""
        self._answer()
        fresh = (space, key) not in self.kept
        if fresh or overwrite:
            self.kept[space, key] = value
        return int(fresh)

    def internal_kv_del(self, key: bytes, by_prefix: bool, space: bytes, timeout: float, /) -> int:
        """Implements `KeyValues`."""
        self._answer()
        return int(self.kept.pop((space, key), None) is not None)

    def internal_kv_keys(self, prefix: bytes, space: bytes, timeout: float, /) -> list[bytes]:
        """Implements `KeyValues`."""
        self._answer()
        return [key for found, key in self.kept if found == space and key.startswith(prefix)]
