"""Records of memory servers that exist only in a test."""

from typing import Any

from serving.ids import NodeId
from serving.values.pool_view import PoolView, ServerRecord, ServerState


def server_record(name: str, incarnation: str = "first", **more: Any) -> ServerRecord:
    """Record of a server that has served for a second."""
    fields: dict[str, Any] = {
        "node": NodeId("n0"),
        "host": "127.0.0.1",
        "port": 7000,
        "segment": f"/dev/shm/none-{name}",
        "generation": 1,
        "capacity_bytes": 1 << 20,
        "state": ServerState.ACTIVE,
        "uptime_s": 1.0,
        **more,
    }
    return ServerRecord(name, incarnation, **fields)


def names(view: PoolView | None) -> list[str]:
    assert view is not None
    return [server.record.name for server in view.servers]
