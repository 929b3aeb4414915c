"""The memory servers of the one node."""

from pathlib import Path

from tests.e2e.server import SHARED_MEMORY

UB_MIB = 8
RAMP_S = 4
POOL = f"""
[kvcache]
replicas = 1
ub_memory_mib = {UB_MIB}
ssd_mib = 32
slab_kib = 64
write_through = true
ramp_s = {RAMP_S}
"""


def segments(session: str) -> list[Path]:
    """UB segments of memory servers."""
    return sorted(SHARED_MEMORY.glob(f"cloudmatrix-ub-{session}-*-kvcache-*"))
