"""A step that computes prompts together with running decodes: its two limits, its bounds, and its shared parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.cost import CostModel, DecodeLoad, PrefillLoad, load_device
from hardware.cost.engine_profile import load_engine
from hardware.cost.mixed_step import MixedStep
from hardware.cost.parallelism import Parallelism
from hardware.errors import SpecError
from tests.hardware.cost.known import known

DEVICE = load_device("ascend-910c")
R1 = CostModel(DEVICE)
MIXED = MixedStep(R1)
DIES = 32
batches = st.integers(1, 96)
chunks = st.integers(1, 65_536)


def decodes(batch: float, context: int = 4096, drafts: int = 1) -> DecodeLoad:
    return DecodeLoad(batch, batch * context, batch, DIES, drafts)


def prompts(tokens: float, context: int = 2048) -> PrefillLoad:
    return PrefillLoad(tokens, tokens * context, DIES)


@given(batches)
def test_without_a_chunk_it_is_a_decode_step(batch: int) -> None:
    assert MIXED.seconds(decodes(batch), prompts(0)) == R1.decode_step_s(decodes(batch))


@given(chunks)
def test_without_decodes_it_is_a_prefill_step(tokens: int) -> None:
    assert MIXED.seconds(decodes(0), prompts(tokens)) == R1.prefill_step_s(prompts(tokens))


@pytest.mark.parametrize("engine", [None, "vllm-ascend", "xdeepserve"])
@given(batches, chunks)
def test_it_is_longer_than_either_and_shorter_than_both(engine: str | None, batch: int, tokens: int) -> None:
    cost = CostModel(DEVICE, engine=None if engine is None else load_engine(engine))
    mixed = MixedStep(cost).seconds(decodes(batch), prompts(tokens))
    alone = cost.decode_step_s(decodes(batch)), cost.prefill_step_s(prompts(tokens))
    assert max(alone) <= mixed < sum(alone)


@given(batches, chunks)
def test_more_of_either_takes_no_less_time(batch: int, tokens: int) -> None:
    mixed = MIXED.seconds(decodes(batch), prompts(tokens))
    assert MIXED.seconds(decodes(batch + 8), prompts(tokens)) >= mixed
    assert MIXED.seconds(decodes(batch), prompts(2 * tokens)) >= mixed * 0.999


def test_weights_are_read_once_for_rows_and_a_chunk() -> None:
    """Where a chunk is bound by products, rows cost much less than the read that they would wait for alone."""
    extra = MIXED.seconds(decodes(4), prompts(16_384)) - R1.prefill_step_s(prompts(16_384))
    assert extra < 0.4 * R1.decode_step_s(decodes(4))
    cost = CostModel(DEVICE, known("llama-3.1-8b"))
    rows, chunk = DecodeLoad(8, 8 * 1024, 8, 2, 0), PrefillLoad(64, 64 * 512, 2)
    read_s = cost.shape.dense_weights * cost.shape.layers / DEVICE.die.hbm_bytes_per_s
    apart = cost.decode_step_s(rows) + cost.prefill_step_s(chunk)
    assert apart - MixedStep(cost).seconds(rows, chunk) > 0.5 * read_s
    with pytest.raises(SpecError, match="no aggregated"):
        MixedStep(CostModel(DEVICE, decode=Parallelism(expert_dies=32)))
