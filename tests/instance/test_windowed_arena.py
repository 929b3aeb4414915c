"""What gpt-oss-20b's sliding windows save: KV bytes of a long sequence, and how many of them an arena holds."""

from dataclasses import replace

import pytest
import torch

from serving.ids import SequenceId
from serving.instance.core.block_pool import BlockPool
from serving.instance.core.sequence import LiveSequence
from serving.instance.core.sequence_blocks import SequenceBlocks, blocks_for
from serving.instance.core.settings import EngineSettings
from serving.instance.core.windowed_blocks import make_blocks
from serving.model.config import architecture_of
from serving.model.kv_layout import KvLayout
from serving.model.split_layers import SplitLayers, split_layers
from serving.values.sequence import SamplingParams, SequenceSpec
from tests.model.families.published import GPT_OSS_20B

CONFIG = architecture_of(GPT_OSS_20B, {})
ROW_BYTES = KvLayout.of(CONFIG.row, torch.bfloat16).row_bytes
SIZE, CHUNK = 16, 256
SETTINGS = EngineSettings(block_tokens=SIZE, max_step_tokens=CHUNK, max_model_len=131072, prefix_reuse=False)
MIB = 1 << 20


def arena(split: SplitLayers | None, nbytes: int) -> tuple[SequenceBlocks, int]:
    """Block tables over an arena of so many bytes, and the bytes of a block."""
    layers = len(CONFIG.layers) if split is None else split.layers
    block_bytes = layers * SIZE * ROW_BYTES
    settings = SETTINGS if split is None else replace(SETTINGS, split=split.split)
    return make_blocks(settings, BlockPool(nbytes // block_bytes)), block_bytes


def admit(blocks: SequenceBlocks, name: str, tokens: int) -> LiveSequence | None:
    """A sequence whose tokens are all computed, chunk by chunk; None = it has no room."""
    spec = SequenceSpec(SequenceId(name), tuple(range(tokens)), SamplingParams())
    sequence = LiveSequence(spec, (0.0, 0), 0.0)
    if not blocks.reserve(sequence, 0):
        return None
    for upto in (*range(CHUNK, tokens, CHUNK), tokens):
        assert blocks.grow(sequence, upto)
        sequence.num_computed = upto
        blocks.slide(sequence)
    return sequence


@pytest.mark.parametrize("tokens", [1024, 8192, 65536])
def test_layers_with_a_window_keep_as_much_of_a_long_sequence_as_of_a_short_one(tokens: int) -> None:
    split = split_layers(CONFIG)
    assert split is not None
    blocks, block_bytes = arena(split, 8192 * MIB)
    sequence = admit(blocks, "a", tokens)
    assert sequence is not None
    full = blocks_for(tokens, SIZE)
    assert blocks.pool.num_used - full <= 128 // SIZE + 1
    assert blocks.pool.num_used * block_bytes <= tokens * 24 * 1024 + 4 * MIB


def test_an_arena_holds_almost_twice_as_many_sequences_of_which_half_the_layers_slide() -> None:
    """8,192 tokens each in 8 GiB: 21 with all rows of all layers, 41 without those that the window has passed."""
    held = []
    for split in (None, split_layers(CONFIG)):
        blocks, _ = arena(split, 8192 * MIB)
        names = iter(range(100))
        while admit(blocks, str(next(names)), 8192) is not None:
            pass
        held.append(next(names) - 1)
    assert held == [21, 41]
