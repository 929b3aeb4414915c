"""Published configurations are accepted: none of their keys is mistaken for one that changes results."""

import pytest

from serving.model.architecture import ClampedGate, ExpertShape, GroupedShape, LatentShape
from serving.model.config import architecture_of
from tests.model.families.published import PUBLISHED


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_is_read(name: str) -> None:
    raw = PUBLISHED[name]
    found = architecture_of(raw, {})
    assert len(found.layers) == raw["num_hidden_layers"]
    assert found.max_position_embeddings == raw["max_position_embeddings"]
    assert found.computed_up_to is None


def test_what_is_special_of_each() -> None:
    found = {name: architecture_of(raw, {}) for name, raw in PUBLISHED.items()}
    smollm3 = [layer.attention.rope_dim for layer in found["SmolLM3-3B"].layers]
    assert smollm3 == [128, 128, 128, 0] * 9
    air, flash = found["GLM-4.5-Air"], found["GLM-4.7-Flash"]
    assert isinstance(air.attention, GroupedShape)
    assert (air.attention.rope_dim, air.attention.input_bias, air.attention.output_bias) == (64, True, False)
    assert (len(air.drafts), air.experts is not None and air.experts.gate.sigmoid) == (1, True)
    assert isinstance(flash.attention, LatentShape)
    assert flash.attention.row.elements == 576
    assert [isinstance(layer.feed, ExpertShape) for layer in flash.layers[:3]] == [False, True, True]
    gpt_oss, windows = found["gpt-oss-20b"], [getattr(x.attention, "window", 0) for x in found["gpt-oss-20b"].layers]
    assert windows == [128, None] * 12
    assert isinstance(gpt_oss.attention, GroupedShape)
    assert (gpt_oss.attention.sinks, gpt_oss.attention.output_bias, gpt_oss.quantization.mxfp4) == (True, True, True)
    assert gpt_oss.experts is not None
    assert gpt_oss.experts.clamped == ClampedGate(1.702, 7.0)
    assert gpt_oss.rope.amplitude == pytest.approx(1.3465736)
    assert found["Qwen3-0.6B"].row.elements == 2 * 8 * 128
    indexer = found["DeepSeek-V3.2"].indexer
    assert indexer is not None
    assert (indexer.heads, indexer.head_dim, indexer.rope_dim, indexer.top_k) == (64, 128, 64, 2048)
    assert found["DeepSeek-V3.2"].row.elements == 576 + 128
