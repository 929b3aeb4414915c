"""Attention that does not read whole contexts: the choice of an indexer, or a window; by hand, and against reading
all.
"""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.cost import DEEPSEEK_R1, CostModel, DecodeLoad, ModelShape, PrefillLoad, load_device
from hardware.cost.attention import ContextReach, GroupedAttentionSizes, LatentAttentionSizes
from tests.hardware.cost.known import known

ASCEND = load_device("ascend-910c")
SPARSE, DENSE = CostModel(ASCEND, known("deepseek-v3.2")), CostModel(ASCEND)
SLACK = 1 + 1e-9

limited = st.sampled_from(["deepseek-v3.2", "glm-5", "gpt-oss-20b", "mistral-7b-v0.1"]).map(
    lambda name: CostModel(ASCEND, known(name))
)


def parts(model: CostModel, load: DecodeLoad | PrefillLoad) -> dict[str, float]:
    """Seconds by operator, once each."""
    cost = model.decode_step(load) if isinstance(load, DecodeLoad) else model.prefill_step(load)
    return {part.name: part.time_s / part.runs for part in cost.parts}


@given(st.integers(1, 5000), st.integers(0, 9000), st.integers(1, 9000))
def test_a_prompt_reads_the_sum_over_its_rows(limit: int, first: int, tokens: int) -> None:
    """Compared with the sum over the tokens' own reads."""
    rows = range(first, first + tokens)
    by_hand = sum(min(row + 0.5, limit) for row in rows) / tokens
    found = ContextReach(limit).prompt_tokens(first + tokens / 2, first)
    assert found == pytest.approx(by_hand, rel=0.01, abs=0.5)


@given(st.integers(1, 5000), st.floats(0.0, 1.0), st.floats(0, 1e5), st.floats(0, 1e5))
def test_a_longer_context_is_never_read_less(limit: int, share: float, context: float, more: float) -> None:
    reach = ContextReach(limit, share)
    assert reach.tokens(context) <= reach.tokens(context + more) * SLACK
    assert reach.prompt_tokens(context) <= reach.prompt_tokens(context + more) * SLACK
    assert reach.prompt_tokens(context) <= reach.tokens(context) * SLACK <= context * SLACK


# --- sparse attention ---------------------------------------------------------------------------------------------
def test_an_indexer_by_hand_and_what_memory_holds_of_it() -> None:
    """DeepSeek-V3.2: queries 1536 x 64 x 128, a key 7168 x 128, weights of heads 7168 x 64."""
    shape = known("deepseek-v3.2")
    assert shape.indexer is not None
    assert shape.indexer_weights == 1536 * 8192 + 7168 * 128 + 7168 * 64 == 13_959_168
    assert shape.parameters - DEEPSEEK_R1.parameters == 61 * 13_959_168
    assert float(shape.indexer.score_flops) == 16_384
    assert shape.attention.token_bytes() - DEEPSEEK_R1.attention.token_bytes() == 256
    assert shape.attention.token_bytes(int8=True) - DEEPSEEK_R1.attention.token_bytes(int8=True) == 256
    sparse, dense = SPARSE.hbm_plan("decode", 320), DENSE.hbm_plan("decode", 320)
    assert sparse.weights - dense.weights == 2 * 62 * 13_959_168, "61 layers and the MTP module's, BF16"
    assert sparse.kv_tokens == sparse.kv // (61 * (576 + 128) * 2)


def test_a_decode_step_by_hand() -> None:
    """48 sequences of 32K, no half batches, one draft: scores over all tokens, core attention over 2,048."""
    cal, die = ASCEND.calibration, ASCEND.die
    sparse = parts(SPARSE, DecodeLoad(48, 48 * 32_768, microbatch=False))
    dense = parts(DENSE, DecodeLoad(48, 48 * 2048, microbatch=False))
    peak, rate = die.bf16_flops_per_s * cal.core_utilisation, die.hbm_bytes_per_s
    read = 2 * 48 * 2048
    assert sparse["core attention"] == pytest.approx(
        max(read * 278_528 / peak, read * 1152 / (rate * cal.gathered_memory_efficiency))
    )
    assert sparse["indexer scores"] == pytest.approx(
        max(2 * 48 * 32_768 * 16_384 / peak, 48 * 32_768 * 256 / (rate * cal.core_memory_efficiency))
    )
    assert sparse["choice of tokens"] == pytest.approx(2 * 48 * 32_768 * (3 * 64 + 8) / die.vector_flops_per_s)
    assert sparse["indexer"] == pytest.approx(13_959_168 * 2 / (rate * cal.weight_memory_efficiency))
    for same in ("prolog", "output projection", "expert products", "dispatch", "combine", "LM head"):
        assert sparse[same] == dense[same]


@pytest.mark.parametrize("context", [100, 1024, 2048])
def test_where_all_tokens_are_chosen_only_the_indexer_is_more(context: int) -> None:
    load = DecodeLoad(24, 24 * context, microbatch=False)
    sparse, dense = parts(SPARSE, load), parts(DENSE, load)
    assert sparse["core attention"] == dense["core attention"]
    assert SPARSE.decode_step_s(load) > DENSE.decode_step_s(load)


def test_what_long_contexts_and_prompts_cost() -> None:
    """The report's claim: at 128K decode and prefill cost a fraction. Short contexts pay for the indexer's kernels."""
    for context, low, high in ((1024, 1.0, 1.4), (16_384, 0.4, 0.9), (131_072, 0.1, 0.3)):
        assert low < SPARSE.tpot_s(24, context) / DENSE.tpot_s(24, context) < high
    for prompt, low, high in ((1024, 1.0, 1.1), (131_072, 0.3, 0.6)):
        load = PrefillLoad(131_072, 131_072 * prompt / 2)
        assert low < SPARSE.prefill_step_s(load) / DENSE.prefill_step_s(load) < high
    # Masked in plain form while short, the chosen ones in absorbed form once that is less.
    n, core = 4096, ASCEND.die.bf16_flops_per_s * ASCEND.calibration.prefill_core_utilisation
    for mean, per_token in ((1024, 1024 * 81_920), (4096, 4096 * 81_920), (30_000, 2013.0 * 278_528)):
        found = parts(SPARSE, PrefillLoad(32 * n, 32 * n * mean))["core attention"]
        assert found == pytest.approx(n * per_token / core, rel=1e-3)
    # A token behind 30,000 cached ones reads 2,048; the mean of a whole prompt as long is less.
    whole, rest = (PrefillLoad(8192, 8192 * 30_000, first=first) for first in (0.0, 29_872.0))
    assert parts(SPARSE, rest)["core attention"] / parts(SPARSE, whole)["core attention"] == pytest.approx(
        2048 / 2013.0, rel=1e-3
    )
    assert DENSE.prefill_step_s(whole) == DENSE.prefill_step_s(rest)


def test_layers_that_take_a_choice_have_no_indexer() -> None:
    shape = known("glm-5")
    assert shape.indexer is not None
    assert isinstance(shape.attention, LatentAttentionSizes)
    half = replace(shape, attention=replace(shape.attention, indexer=replace(shape.indexer, layers=39)))
    load = DecodeLoad(16, 16 * 20_000, microbatch=False)
    all_of_them, some = parts(CostModel(ASCEND, shape), load), parts(CostModel(ASCEND, half), load)
    for name in ("indexer", "indexer scores", "choice of tokens"):
        assert some[name] == pytest.approx(all_of_them[name] / 2)
    assert some["core attention"] == all_of_them["core attention"]
    assert (shape.parameters - half.parameters) == 39 * shape.indexer_weights


# --- windows ------------------------------------------------------------------------------------------------------
def without_window(shape: ModelShape) -> ModelShape:
    assert isinstance(shape.attention, GroupedAttentionSizes)
    return replace(shape, attention=replace(shape.attention, window=None, windowed_layers=0))


def test_a_window_by_hand() -> None:
    """gpt-oss-20b: every other layer sees 128 tokens, so a layer reads (128 + context) / 2 on average."""
    shape = known("gpt-oss-20b")
    model, whole = CostModel(ASCEND, shape), CostModel(ASCEND, without_window(shape))
    load = DecodeLoad(16, 16 * 8192, None, 32, 0, False)
    ratio = parts(model, load)["core attention"] / parts(whole, load)["core attention"]
    assert ratio == pytest.approx((128 + 8192) / 2 / 8192)
    for context in (1, 100, 128):
        assert model.decode_step_s(DecodeLoad(16, 16 * context, None, 32, 0)) == whole.decode_step_s(
            DecodeLoad(16, 16 * context, None, 32, 0)
        )
    prompt = PrefillLoad(65_536, 65_536 * 4096)
    ratio = parts(model, prompt)["core attention"] / parts(whole, prompt)["core attention"]
    assert ratio == pytest.approx((128 * (1 - 128 / (4 * 4096)) + 4096) / 2 / 4096)


def test_beyond_a_window_in_all_layers_a_step_no_longer_grows_and_routing_knows() -> None:
    mistral = CostModel(ASCEND, known("mistral-7b-v0.1"))
    steps = [mistral.decode_step_s(DecodeLoad(8, 8 * context, None, 2, 0)) for context in (2048, 4096, 8192, 32_768)]
    assert steps[0] < steps[1] == steps[2] == steps[3]
    assert mistral.shape.attention_tokens == math.inf
    assert known("gpt-oss-20b").attention_tokens == pytest.approx(
        2 * without_window(known("gpt-oss-20b")).attention_tokens
    )
    assert known("deepseek-v3.2").attention_tokens == pytest.approx(DEEPSEEK_R1.attention_tokens * 5, rel=0.05)


@given(limited, st.integers(1, 64), st.integers(1, 60_000), st.floats(1.0, 3.0), st.sampled_from([True, False]))
def test_more_is_never_faster(model: CostModel, requests: int, context: int, factor: float, halves: bool) -> None:
    load = DecodeLoad(requests, requests * context, None, 32, 0, halves)
    longer = replace(load, context_tokens=load.context_tokens * factor)
    larger = replace(load, requests=requests + 1, context_tokens=(requests + 1) * context)
    assert model.decode_step_s(load) <= min(model.decode_step_s(longer), model.decode_step_s(larger)) * SLACK
    cost = model.decode_step(load)
    if not cost.microbatch:
        assert cost.total_s == pytest.approx(sum(part.time_s for part in cost.parts))
    prompts = PrefillLoad(requests * 1000, requests * 1000 * context)
    more = replace(prompts, attended_tokens=prompts.attended_tokens * factor)
    assert model.prefill_step_s(prompts) <= model.prefill_step_s(more) * SLACK
    assert model.prefill_step_s(prompts) <= sum(p.time_s for p in model.prefill_step(prompts).parts) * SLACK
