"""Settings of a memory server in a test's process."""

from pathlib import Path
from typing import Any

from serving.ids import NodeId
from serving.kvpool.live.server_settings import ServerSettings
from tests.kvpool.server_process import MIB


def settings_in(segments: Path, **changes: Any) -> ServerSettings:
    values: dict[str, Any] = {
        "node": NodeId("n0"),
        "secret": "secret",
        "capacity_bytes": 4 * MIB,
        "segment_folder": segments,
        "segment_prefix": "kv_",
        **changes,
    }
    return ServerSettings(**values)
