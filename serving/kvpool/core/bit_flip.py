"""Which bit a simulated failing memory cell turns over, for tests."""

from collections.abc import Iterable

from serving.kvpool.core.entry import EntryView, Kind


def drawn_bit(entries: Iterable[EntryView], draw: float) -> tuple[EntryView, int] | None:
    """Choose a bit of a KV block in memory. Model weights are spared: processes compute with them unchecked.

    Args:
        entries: in order of version.
        draw: from 0 to below 1; which bit, counted through all blocks.
    Returns: the block and the index of the bit in it; None if no block is in memory.
    """
    blocks = [one for one in entries if one.in_dram and one.kind is Kind.CONTEXT]
    bits = int(draw * 8 * sum(one.nbytes for one in blocks))
    for one in blocks:
        if bits < 8 * one.nbytes:
            return one, bits
        bits -= 8 * one.nbytes
    return None
