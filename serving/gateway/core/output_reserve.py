"""KV capacity that running sequences are expected to need for their further output.

A view reports the blocks free now, but recently started sequences will take more. Each is expected to grow by the
tokens that it may still generate, at most `most_tokens`; generated tokens are in the view already, so the expectation
shrinks with every token received. Only this gateway's own sequences are counted.
"""

from serving.errors import LedgerError
from serving.ids import ReplicaId

RESERVE_TOKENS = 256
"""Expected tokens of a response of unknown length: Azure's conversations have a median of 129 output tokens and a mean
of 211. A larger value would reserve capacity for output that may never be generated."""


class OutputReserve:
    """Expected growth of one gateway's running sequences, by instance."""

    __slots__ = ("_block_tokens", "_left", "_most", "_total")

    def __init__(self, block_tokens: int, most_tokens: int = RESERVE_TOKENS) -> None:
        self._block_tokens = block_tokens
        self._most = most_tokens
        self._left: dict[str, tuple[ReplicaId, int]] = {}
        self._total: dict[ReplicaId, int] = {}

    def expected_blocks(self, tokens_left: int) -> int:
        """Expected growth of a sequence that may generate this many tokens [blocks]."""
        return -(-min(max(tokens_left, 0), self._most) // self._block_tokens)

    def book(self, name: str, replica: ReplicaId, tokens_left: int) -> None:
        """Reserve KV for the tokens that a sequence may generate at an instance, replacing its earlier booking."""
        self.drop(name)
        expected = min(max(tokens_left, 0), self._most)
        self._left[name] = replica, expected
        self._total[replica] = self._total.get(replica, 0) + expected

    def grew(self, name: str, tokens: int) -> None:
        """Count new tokens of a sequence. Unknown names are ignored."""
        booked = self._left.get(name)
        if booked is None or not booked[1]:
            return
        replica, left = booked
        now = max(0, left - tokens)
        self._left[name] = replica, now
        self._total[replica] -= left - now

    def drop(self, name: str) -> None:
        """Drop the booking of a sequence that ended or moves. Unknown names are ignored."""
        booked = self._left.pop(name, None)
        if booked is None:
            return
        replica, left = booked
        if total := self._total.get(replica, 0) - left:
            self._total[replica] = total
        else:
            self._total.pop(replica, None)

    def blocks(self, replica: ReplicaId) -> int:
        """Blocks that this instance's sequences are still expected to take."""
        return -(-self._total.get(replica, 0) // self._block_tokens)

    def check(self) -> None:
        """Check that the sums are those of the parts.

        Raises: LedgerError if they are not.
        """
        sums: dict[ReplicaId, int] = {}
        for replica, left in self._left.values():
            sums[replica] = sums.get(replica, 0) + left
        if {k: v for k, v in sums.items() if v} != {k: v for k, v in self._total.items() if v}:
            raise LedgerError(f"expected growth is {self._total}, its parts sum to {sums}")
