"""KV blocks of a model in which some or all layers have a sliding window.

    row of a sequence's block table    [ full ... ][ sliding ... ]        block_tokens positions
                                         kept        freed as soon as the window has passed

Blocks of both kinds hold the same number of layers, so that one arena and one pool serve both. A table is flat, row
after row. Sliding blocks that no later token attends to are `GONE`.
"""

from collections.abc import Sequence

from msgspec import Struct

from serving.ids import BlockHash, BlockId

GONE = BlockId(-1)
"""Placeholder of a block that was freed, or never needed."""


class LayerSplit(Struct, frozen=True, gc=False):
    """Blocks of one row of a block table.

    Args:
        full: blocks of layers with full attention.
        sliding: blocks of layers with a window, at least one.
        window: most tokens that a token attends to in these layers, itself included.
    """

    full: int
    sliding: int
    window: int

    @property
    def width(self) -> int:
        """Blocks of a row."""
        return self.full + self.sliding

    def first_row(self, position: int, block_tokens: int) -> int:
        """The first row whose sliding blocks a token at this position attends to."""
        return max(0, position + 1 - self.window) // block_tokens

    def tail_rows(self, block_tokens: int) -> int:
        """Most preceding rows whose sliding blocks a token at the start of a row attends to."""
        return -(-(self.window - 1) // block_tokens)

    def present(self, rows: int, computed: int, block_tokens: int) -> int:
        """Blocks present among the leading rows after this number of computed tokens."""
        return self.full * rows + self.sliding * max(0, rows - self.first_row(computed, block_tokens))

    def keys(self, prefix_hash: BlockHash) -> list[BlockHash]:
        """Hashes of a row's blocks: one for each, the first being the row's own."""
        rest = prefix_hash[1:]
        return [BlockHash(bytes((prefix_hash[0] ^ entry,)) + rest) for entry in range(self.width)]


class FetchedRows(Struct, frozen=True, gc=False):
    """Consecutive rows to request from the KV-cache pool.

    Args:
        first: number of the first of them.
    """

    split: LayerSplit
    block_tokens: int
    first: int

    def needed(self, found: int) -> Sequence[int]:
        """Indices of the found leading blocks to read: those that a token after their rows attends to.

        Args:
            found: number of leading blocks found, in request order.
        """
        full, width = self.split.full, self.split.width
        rows = found // width
        end = (self.first + rows) * self.block_tokens
        seen = self.split.first_row(end, self.block_tokens) - self.first
        return [row * width + entry for row in range(rows) for entry in range(width if row >= seen else full)]
