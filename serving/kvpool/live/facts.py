"""Facts of a memory server: plain values for status pages, metrics and the controller."""

import dataclasses
from typing import Any

from serving.kvpool.core.memory_manager import MemoryManager
from serving.kvpool.live.server_core import ServerCore


def usage_of(manager: MemoryManager) -> dict[str, Any]:
    """`{namespace: {dram_bytes, ssd_bytes, entries, ...}}`. Called under the ledger's lock."""
    return {name: dataclasses.asdict(usage) for name, usage in manager.usage().items()}


def facts_of(core: ServerCore) -> dict[str, Any]:
    """Everything that the ledger and the meters count: `{ledger, namespaces, counters, bounds_s, histograms}`."""
    with core.changed:
        ledger = dataclasses.asdict(core.manager.stats())
        namespaces = usage_of(core.manager)
    return {"ledger": ledger, "namespaces": namespaces, **core.meters.snapshot()}
