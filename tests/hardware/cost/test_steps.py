"""Steps of any load: more work never takes less time, and the parts add up to the whole."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.cost import CostModel, DecodeLoad, PredictedStep, PrefillLoad, load_device, mtp_tokens_per_step
from hardware.errors import SpecError

MODELS = {name: CostModel(load_device(name)) for name in ("ascend-910c", "h800")}
ASCEND = MODELS["ascend-910c"]
SLACK = 1 + 1e-9

models = st.sampled_from(sorted(MODELS)).map(MODELS.__getitem__)
decode_loads = st.builds(
    lambda requests, context, spread, dies, drafts, microbatch: DecodeLoad(
        requests, requests * context, requests * spread, dies, drafts, microbatch
    ),
    st.integers(1, 96),
    st.integers(1, 40_000),
    st.floats(0.3, 1.0),
    st.sampled_from([8, 32, 64, 128, 160, 256, 288, 320, 640]),
    st.integers(0, 3),
    st.sampled_from([True, False, None]),
)
prefill_loads = st.builds(
    lambda tokens, seen, dies, perfect, microbatch: PrefillLoad(
        tokens, tokens * seen, dies, 1.0 if perfect else None, microbatch
    ),
    st.integers(1, 400_000),
    st.integers(1, 60_000),
    st.sampled_from([16, 32, 64]),
    st.booleans(),
    st.booleans(),
)


@given(models, decode_loads, st.floats(1.0, 3.0), st.integers(1, 32))
def test_more_decode_work_is_never_faster(model: CostModel, load: DecodeLoad, factor: float, more: int) -> None:
    """Drafts from one on; the first one also gives core attention a second row to fill its tiles."""
    everywhere, drafting = replace(load, mean_requests=None), replace(load, drafts=max(1, load.drafts))
    for less, larger in (
        (load, replace(load, context_tokens=load.context_tokens * factor)),
        (everywhere, replace(everywhere, requests=load.requests + more)),
        (load, replace(load, mean_requests=load.requests)),
        (drafting, replace(drafting, drafts=drafting.drafts + 1)),
    ):
        assert model.decode_step_s(less) <= model.decode_step_s(larger) * SLACK


@given(decode_loads)
def test_twice_the_dies_never_make_a_step_much_slower(load: DecodeLoad) -> None:
    """Fewer experts per die; dispatch and combine grow a little with the degree, as measured.

    From 160 to 320 dies shared experts get separate dies, so a token is sent to nine instead of eight.
    """
    for dies, most in ((40, 1.02), (80, 1.02), (160, 1.06)):
        small, large = replace(load, dies=dies), replace(load, dies=2 * dies)
        assert ASCEND.decode_step_s(large) <= ASCEND.decode_step_s(small) * most


@given(models, prefill_loads, st.floats(1.0, 4.0), st.integers(1, 50_000))
def test_more_prefill_work_is_never_faster(model: CostModel, load: PrefillLoad, factor: float, more: int) -> None:
    """More tokens, longer contexts; balance and overlap do not cost."""
    plain = replace(load, imbalance=None, microbatch=False)
    for less, larger in (
        (load, replace(load, tokens=load.tokens + more, attended_tokens=load.attended_tokens + more)),
        (load, replace(load, attended_tokens=load.attended_tokens * factor)),
        (replace(plain, imbalance=1.0), plain),
        (replace(plain, microbatch=True), plain),
    ):
        assert model.prefill_step_s(less) <= model.prefill_step_s(larger) * SLACK


@given(prefill_loads)
def test_more_prefill_dies_are_never_slower(load: PrefillLoad) -> None:
    """On the Ascend, whose instances split each prompt."""
    small, large = replace(load, dies=16), replace(load, dies=32)
    assert ASCEND.prefill_step_s(large) <= ASCEND.prefill_step_s(small) * 1.01


def stream_s(cost: PredictedStep, stream: int) -> float:
    return sum(part.time_s for part in cost.parts if part.stream == stream)


@given(models, decode_loads)
def test_decode_parts_add_up(model: CostModel, load: DecodeLoad) -> None:
    cost = model.decode_step(load)
    assert cost.total_s == model.decode_step_s(load)
    assert cost.microbatch == model.decode.uses_microbatch(load)
    halves, layers = 2 if cost.microbatch else 1, model.shape.layers + load.drafts
    assert stream_s(cost, 0) == pytest.approx(cost.streams_s[0] * halves * layers)
    dense = next(part for part in cost.parts if part.name == "dense feed-forward")
    experts = stream_s(cost, 1) - dense.time_s
    assert experts == pytest.approx(cost.streams_s[1] * halves * (layers - model.shape.dense_layers))
    assert stream_s(cost, -1) == pytest.approx(model.decode.outside_s(load))
    total = sum(part.time_s for part in cost.parts)
    if not cost.microbatch:
        assert cost.total_s == pytest.approx(total)
    elif model is ASCEND:
        assert max(stream_s(cost, 0), experts) <= cost.total_s <= total * 1.05
    else:  # the expert streams of the two halves overlap each other too: one sends while the other computes
        sent = sum(part.time_s for part in cost.parts if part.bound == "network")
        assert max(stream_s(cost, 0), sent) <= cost.total_s <= total * 1.05
    assert all(part.runs > 0 and part.formula and part.time_s >= 0 for part in cost.parts)


@given(models, prefill_loads)
def test_prefill_parts_add_up(model: CostModel, load: PrefillLoad) -> None:
    cost = model.prefill_step(load)
    assert cost.total_s == model.prefill_step_s(load)
    if cost.microbatch:
        assert max(stream_s(cost, 0), stream_s(cost, 1)) <= cost.total_s * SLACK
    else:
        assert cost.total_s <= sum(part.time_s for part in cost.parts) * SLACK
    assert cost.total_s >= stream_s(cost, -1)


@given(st.integers(8, 96), st.integers(1, 40_000), st.integers(0, 2))
def test_the_best_split_is_found(requests: int, context: int, drafts: int) -> None:
    """Against trying every split."""
    step = ASCEND.decode
    half = step.half_batch(DecodeLoad(requests, requests * context, None, 320, drafts, True), 2)
    found = step.best_share(half)

    def slower(share: float) -> float:
        return max(step.attention_s(half, share), step.expert_s(half, 1 - share))

    assert slower(found) == pytest.approx(min(slower(cores / 24) for cores in range(8, 21)))


@pytest.mark.parametrize(
    ("drafts", "acceptance", "tokens"), [(0, 0.7, 1.0), (1, 0.7, 1.7), (1, 0.9, 1.9), (2, 0.5, 1.75), (3, 1.0, 4.0)]
)
def test_tokens_per_step(drafts: int, acceptance: float, tokens: float) -> None:
    assert mtp_tokens_per_step(drafts, acceptance) == pytest.approx(tokens)


@pytest.mark.parametrize(("drafts", "acceptance"), [(-1, 0.7), (1, 1.1), (1, -0.1), (1, math.nan)])
def test_impossible_drafts(drafts: int, acceptance: float) -> None:
    with pytest.raises(SpecError, match="not possible"):
        mtp_tokens_per_step(drafts, acceptance)


@pytest.mark.parametrize(("tpot_ms", "context"), [(50, 1024), (50, 4096), (30, 4096), (15, 4096), (50, 32_768)])
def test_the_largest_batch_holds_and_one_more_does_not(tpot_ms: float, context: int) -> None:
    batch = ASCEND.max_batch(tpot_ms / 1e3, context)
    assert ASCEND.tpot_s(batch, context) <= tpot_ms / 1e3 < ASCEND.tpot_s(batch + 1, context)


def test_published_batches_hold_their_targets_and_memory_limits_where_time_does_not() -> None:
    """Table 5 runs 96, 24 and 8 sequences at 50, 30 and 15 ms."""
    assert ASCEND.max_batch(0.050, 4096 + 128) == pytest.approx(96, abs=4)
    assert ASCEND.max_batch(0.030, 4096 + 128) >= 24
    assert ASCEND.max_batch(0.015, 4096) == pytest.approx(8, abs=1)
    assert ASCEND.max_batch(10.0, 4096) == 294
    assert ASCEND.max_batch(0.001, 4096) == 0
    assert 0.05 < ASCEND.prefill_step_s(PrefillLoad(4096, 4096 * 2048)) < 0.1


@pytest.mark.parametrize("context", [1_000, 4096, 131_072, 400_000, 1_000_000])
def test_a_sequence_lies_whole_on_one_die(context: int) -> None:
    """So an NPU fits twice the sequences of one die, and the remainders of both together fit none."""
    on_a_die = ASCEND.hbm_plan("decode", 320).kv_tokens // context
    assert ASCEND.max_batch(1e9, context) == ASCEND.batch_that_fits(context) == 2 * on_a_die


@pytest.mark.parametrize("name", ["h100", "h200", "h800"])
@pytest.mark.parametrize("tpot_ms", [20, 26, 28, 30, 40])
def test_the_largest_batch_is_found_beyond_a_threshold_at_which_steps_shrink(name: str, tpot_ms: float) -> None:
    model = CostModel(load_device(name))
    tried = [n for n in range(1, 120) if model.tpot_s(n, 4096, dies=144) <= tpot_ms / 1e3]
    assert model.max_batch(tpot_ms / 1e3, 4096, dies=144) == max(tried, default=0)


def test_half_batches_run_where_they_are_faster() -> None:
    """They were forced from 16 sequences per NPU on, which lengthened TPOT there by 18 %."""
    tpots = [float(ASCEND.tpot_s(batch, 4096)) for batch in range(2, 97)]
    for batch, tpot in enumerate(tpots, 2):
        either = [float(ASCEND.tpot_s(batch, 4096, microbatch=on)) for on in (True, False)]
        assert tpot == min(either)
    assert max(later / earlier for earlier, later in pairwise(tpots)) < 1.05
    assert not ASCEND.decode.uses_microbatch(DecodeLoad(8, 8 * 4096))
    assert ASCEND.decode.uses_microbatch(DecodeLoad(48, 48 * 4096))
    assert ASCEND.decode.uses_microbatch(DecodeLoad(1, 4096, microbatch=True))
    assert ASCEND.max_batch(0.020, 4096) == 21, "15 while half batches were forced"
