"""Nodes as Ray lists them, and a store of their numbers in memory."""

from collections.abc import Callable
from typing import Any

from serving.cluster.gcs_store import GcsStore
from serving.cluster.node_numbers import NodeNumbers
from tests.cluster.gcs_fake import FakeGcs

EXPECTED, UNEXPECTED = 1, 2
"""Ray's reasons of a node's end."""


def listed(
    name: str,
    label: str | None = None,
    npus: int = 8,
    address: str = "10.0.0.1",
    *,
    alive: bool = True,
    reason: int = 0,
) -> dict[str, Any]:
    """One row of `ray.nodes`."""
    return {
        "NodeID": name,
        "Alive": alive,
        "Labels": {"cloudmatrix-node": label} if label is not None else {},
        "Resources": {"NPU": float(npus), "UB_MEMORY": 1024.0} if alive else {},
        "NodeManagerHostname": f"host-{address}",
        "NodeManagerAddress": address,
        "DeathReason": reason,
    }


class RacedGcs(FakeGcs):
    """A control store in which another change happens right before the next value is put."""

    def __init__(self) -> None:
        super().__init__()
        self.before_put: Callable[[], None] | None = None

    def internal_kv_put(self, key: bytes, value: bytes, overwrite: bool, space: bytes, timeout: float, /) -> int:
        """Implements `KeyValues`."""
        race, self.before_put = self.before_put, None
        if race is not None:
            race()
        return super().internal_kv_put(key, value, overwrite, space, timeout)


def numbers(gcs: FakeGcs | None = None) -> NodeNumbers:
    """Table of a new control store, or of the given one."""
    there = gcs or FakeGcs()
    return NodeNumbers(GcsStore(lambda: there))
