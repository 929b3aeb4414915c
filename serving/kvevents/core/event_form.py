"""KV events as they are on the wire: MessagePack in one of the three forms that vLLM has had.

    array   [ts, [["BlockStored", ...], ...], rank]                  older releases, SGLang
    map     [ts, [{"type": "BlockStored", ...}, ...], rank]          what Dynamo reads, beside the first
    maps    {"ts": ts, "events": [{...}, ...], "data_parallel_rank": rank}                   newest releases

A map omits fields that have their default; an array ends before the trailing ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from serving.config.kv_events import EventShape, HashForm
from serving.ids import BlockHash

_STORED = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name")
_encoder = msgspec.msgpack.Encoder()

Event = Any
"""A map or an array, to be packed."""


@dataclass(frozen=True, slots=True)
class EventForm:
    """How one publisher writes its events.

    Args:
        shape: see the module. hashes: `uint64` = a hash's first 8 bytes, `bytes` = all.
        block_tokens: tokens of a block.
        rank: of the publisher among those with its topic.
    """

    shape: EventShape
    hashes: HashForm
    block_tokens: int
    rank: int = 0

    def stored(
        self,
        medium: str,
        hashes: Sequence[BlockHash],
        parent: BlockHash | None,
        tokens: Sequence[int],
        group: int | None = None,
    ) -> Event:
        """`BlockStored` of consecutive blocks; without `tokens` only their hashes are known."""
        before = None if parent is None else self._hash(parent)
        # Salts are never sent: blocks of requests with a salt of their own are not published at all.
        values = self._hashes(hashes), before, tokens, self.block_tokens, None, medium, None
        if self.shape == "array":
            return ["BlockStored", *values, *(() if group is None else (None, group))]
        event = {"type": "BlockStored", **dict(zip(_STORED, values, strict=True))}
        return event if group is None else {**event, "group_idx": group}

    def removed(self, medium: str, hashes: Sequence[BlockHash], group: int | None = None) -> Event:
        """`BlockRemoved`."""
        if self.shape == "array":
            return ["BlockRemoved", self._hashes(hashes), medium, *(() if group is None else (group,))]
        event = {"type": "BlockRemoved", "block_hashes": self._hashes(hashes), "medium": medium}
        return event if group is None else {**event, "group_idx": group}

    def cleared(self) -> Event:
        """`AllBlocksCleared`: no block stored before is there any more."""
        return ["AllBlocksCleared"] if self.shape == "array" else {"type": "AllBlocksCleared"}

    def pack(self, events: Sequence[Event], now: float) -> bytes:
        """One batch.

        Args:
            now: Unix time [s].
        """
        if self.shape == "maps":
            return _encoder.encode({"ts": now, "events": events, "data_parallel_rank": self.rank})
        return _encoder.encode((now, events, self.rank))

    def _hash(self, block: BlockHash) -> bytes | int:
        return block if self.hashes == "bytes" else int.from_bytes(block[:8], "big")

    def _hashes(self, blocks: Sequence[BlockHash]) -> list[bytes | int]:
        if self.hashes == "bytes":
            return [*blocks]
        number = int.from_bytes
        return [number(block[:8], "big") for block in blocks]
