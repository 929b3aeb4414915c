"""A subscriber as routers have it: an index built from batches, which asks for those that it missed."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from serving.kvevents.core.event_log import Batch

STORED = ("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name")
STORED_REST = ("extra_keys", "group_idx")
REMOVED = ("type", "block_hashes", "medium", "group_idx")


def unpacked(payload: bytes) -> tuple[float, list[dict[str, Any]], int]:
    """A batch of any form, with its events as maps."""
    batch = msgspec.msgpack.decode(payload)
    if isinstance(batch, dict):
        batch = [batch["ts"], batch["events"], batch["data_parallel_rank"]]
    events = []
    for event in batch[1]:
        if isinstance(event, list):
            names = REMOVED if event[0] == "BlockRemoved" else (*STORED, *STORED_REST)
            event = dict(zip(names, event, strict=False))
        events.append(event)
    return batch[0], events, batch[2]


class SubscriberIndex:
    """Index of the blocks that a subscriber believes to be stored.

    Args:
        ask: requests a replay from a number.
    """

    def __init__(self, ask: Callable[[int], Iterable[Batch]]) -> None:
        self._ask = ask
        self._expected = 0
        self.media: defaultdict[str, set[Any]] = defaultdict(set)
        self.tokens: dict[Any, tuple[Any, tuple[int, ...]]] = {}
        """Of each block whose tokens are known, the hash before it, and its tokens."""
        self.gaps = 0

    def hear(self, number: int, payload: bytes) -> None:
        """Take a batch from the socket."""
        if number > self._expected:
            self.gaps += 1
            for missed in self._ask(self._expected):
                self._take(*missed)
        self._take(number, payload)

    def _take(self, number: int, payload: bytes) -> None:
        if number < self._expected:
            return  # came with the replay
        self._expected = number + 1
        for event in unpacked(payload)[1]:
            if event["type"] == "AllBlocksCleared":
                self.media.clear()
                self.tokens.clear()
                continue
            hashes, blocks = event["block_hashes"], self.media[event["medium"]]
            if event["type"] == "BlockRemoved":
                assert blocks >= set(hashes), "a removal of what was never stored"
                blocks.difference_update(hashes)
                continue
            assert not blocks & set(hashes), "stored twice"
            blocks.update(hashes)
            self._learn(event)

    def _learn(self, event: dict[str, Any]) -> None:
        parent, size, tokens = event["parent_block_hash"], event["block_size"], event["token_ids"]
        if tokens:
            assert len(tokens) == size * len(event["block_hashes"])
            for place, block in enumerate(event["block_hashes"]):
                self.tokens[block] = parent, tuple(tokens[place * size : (place + 1) * size])
                parent = block
