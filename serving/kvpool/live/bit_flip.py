"""A failing memory cell, for tests: one bit of one stored KV block is turned over."""

from serving.kvpool.core.entry import Kind
from serving.kvpool.live.server_core import ServerCore


def turn_bit(core: ServerCore, draw: float) -> bool:
    """Turns over one bit of a KV block that lies in memory.

    Args:
        draw: from 0 to below 1; which bit, counted through all blocks in order of their versions.
    Returns: False if no block lies in memory.
    Effects: the block's bytes are not those of its checksum any more; the ledger is not told.
    """
    number = core.new_number()
    blocks = [one for one in core.entries() if one.in_dram and one.kind is Kind.CONTEXT]
    bits = int(draw * 8 * sum(one.nbytes for one in blocks))
    for one in blocks:
        if bits < 8 * one.nbytes:
            break
        bits -= 8 * one.nbytes
    else:
        return False
    with core.changed:  # it may have moved since it was listed
        found = core.in_dram(one.version)
        if found is None or not core.manager.hold(one.version, number, core.now()):
            return False
    try:
        core.view(found.offset, found.nbytes)[bits // 8] ^= 1 << bits % 8
    finally:
        with core.changed:
            core.manager.unhold(one.version, number, core.now())
            core.dispatch()
    return True
