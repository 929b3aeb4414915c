"""The busiest die of an expert-parallel group, against drawn tokens; and the effect for small batches and degrees."""

import itertools

import numpy as np
import pytest

from hardware.cost import CostModel, DecodeLoad, PrefillLoad, load_device
from hardware.cost.decode_terms import group_terms
from hardware.cost.exchange import busiest_tokens, experts_read, largest_draw
from hardware.cost.memory_plan import Role
from hardware.cost.parallelism import Parallelism
from hardware.cost.trust import decode_trust
from hardware.errors import SpecError
from tests.hardware.cost.known import known

ASCEND = load_device("ascend-910c")
MODEL = CostModel(ASCEND)
PER_TOKEN, COPIES = 8, 288


def drawn(tokens: int, dies: int, runs: int = 200) -> tuple[float, float]:
    """Visits and experts read of the busiest die, mean over runs: each token visits 8 of 288 copies at random."""
    random, slots = np.random.default_rng(3), COPIES // dies
    visits, read = [], []
    for _ in range(runs):
        chosen = np.argsort(random.random((tokens, COPIES)), axis=1)[:, :PER_TOKEN]
        counts = np.bincount(chosen.ravel(), minlength=COPIES).reshape(dies, slots)
        visits.append(counts.sum(axis=1).max())
        read.append((counts > 0).sum(axis=1).max())
    return float(np.mean(visits)), float(np.mean(read))


@pytest.mark.parametrize("dies", [16, 32, 96, 288])
@pytest.mark.parametrize("tokens", [1, 2, 8, 32, 200])
def test_against_drawing_tokens(tokens: int, dies: int) -> None:
    visits, read = drawn(tokens, dies)
    missed = (1 - PER_TOKEN / COPIES) ** tokens
    assert experts_read(COPIES // dies, dies, missed) == pytest.approx(read, rel=0.12, abs=0.25)
    mean = tokens * PER_TOKEN / dies
    if mean > 4:  # a handful of visits is no bell curve
        assert busiest_tokens(mean, largest_draw(dies), 0.0) == pytest.approx(visits, rel=0.08)


def test_a_single_die_has_what_there_is_and_few_experts_are_all_there_are() -> None:
    assert largest_draw(1) == 0
    assert busiest_tokens(100, largest_draw(1), 0.3) == 100
    assert experts_read(288, 1, 0.0) == 288
    assert experts_read(288, 1, 0.75) == pytest.approx(72)
    assert experts_read(288, 1, 1.0) == 0
    model = CostModel(ASCEND, known("gpt-oss-20b"))
    for dies in (1, 2, 4, 32):
        assert 0 < model.decode.group(dies).read(1) <= model.decode.group(dies).experts


def test_one_sequence_reads_the_experts_that_it_visits() -> None:
    """On EP32 a die holds ten, and all ten were read, which took 24 ms a token."""
    load = DecodeLoad(1, 4096, 1 / 32, 32)
    assert group_terms(ASCEND, MODEL.shape, 32).experts == 10
    assert 1.5 < MODEL.decode.group(32).read(2) < 3
    assert MODEL.decode_step_s(load) / 1.7 == pytest.approx(14.5e-3, abs=0.7e-3)
    # Half a sequence on each die cannot be.
    assert MODEL.tpot_s(1, 4096) == MODEL.decode_step_s(DecodeLoad(1, 4096, 0.5)) / 1.7
    assert MODEL.tpot_s(1 / 16, 4096, dies=32) < MODEL.tpot_s(1, 4096, dies=32) < MODEL.tpot_s(2, 4096, dies=32)
    times = [float(MODEL.prefill_step_s(PrefillLoad(tokens, tokens))) for tokens in (1, 8, 64, 512)]
    assert times == sorted(times)
    assert times[0] < 0.65 * times[-1], "attention's weights are read all the same"


@pytest.mark.parametrize("dies", [16, 32, 64, 320])
def test_a_large_batch_reads_all_experts(dies: int) -> None:
    group = MODEL.decode.group(dies)
    assert group.read(100 * dies) == group.experts


def test_a_larger_degree_decodes_faster_and_its_busiest_die_has_more_above_the_mean() -> None:
    """A die with one expert reads one, and its product is a large one; EP64 to EP768 cost the same at batch 96."""
    for batch in (8, 24, 96):
        degrees = [MODEL.tpot_s(batch, 4096, dies=dies) for dies in (16, 32, 64, 320)]
        assert degrees == sorted(degrees, reverse=True)
        assert degrees[2] > 1.005 * degrees[3]
    # Less with a larger batch, more with more dies; many experts on a die average it out.

    def above(dies: int, tokens: float) -> float:
        group = MODEL.decode.group(dies)
        return group.busiest(tokens) / (group.routed_visits * tokens)

    assert above(320, 8) > above(320, 48) > above(320, 96) > 1.125, "as long as shared experts' dies are not busier"
    assert 1.1 < above(320, 48) < 1.3
    assert above(32, 48) < above(64, 48) < above(160, 48)


def test_what_a_die_of_a_small_instance_holds() -> None:
    """DeepSeek-R1 in INT8 on 16 dies, the most common deployment, was refused: 20 experts on a die and none shared.

    Sixteen routed experts and the shared one, in 59 layers: 44.2 GB in addition to 16 GB of every die.
    """
    group, shape = MODEL.decode.group(16), MODEL.shape
    assert (group.slots, group.everywhere) == (16, 1)
    plan = MODEL.hbm_plan("decode", 16)
    everywhere = MODEL.hbm_plan("decode", 320).weights - 59 * shape.expert_weights
    assert plan.weights == everywhere + 59 * 17 * shape.expert_weights
    assert plan.weights == pytest.approx(60.2e9, rel=0.01)
    assert plan.instance_kv_tokens > 300_000
    assert MODEL.hbm_plan("prefill", 16).instance_kv_tokens > 60_000, "as those who run it have it, on 8 NPUs"
    with pytest.raises(SpecError, match=r"does not fit on 12 dies .* give the instance more dies"):
        MODEL.hbm_plan("prefill", 12)
    with pytest.raises(SpecError, match=r"does not fit on 8 dies .* no room for KV cache"):
        MODEL.hbm_plan("decode", 8)


@pytest.mark.parametrize(
    ("dies", "slots", "everywhere"),
    [(8, 32, 1), (16, 16, 1), (32, 9, 1), (64, 5, 1), (160, 2, 1), (288, 2, 0), (320, 1, 0)],
)
def test_where_experts_lie(dies: int, slots: int, everywhere: int) -> None:
    """Shared experts have separate dies if there is a die for each routed one; copies from 32 dies on."""
    group = MODEL.decode.group(dies)
    assert (group.slots, group.everywhere) == (slots, everywhere)


# --- redundant copies as a choice ----------------------------------------------------------------------------------
def with_copies(redundant: int | None) -> CostModel:
    division = Parallelism(redundant_experts=redundant)
    return CostModel(ASCEND, decode=division, prefill=division)


@pytest.mark.parametrize("dies", [16, 32, 64, 144, 256, 320])
@pytest.mark.parametrize("tokens", [1, 8, 96])
def test_more_copies_never_burden_the_busiest_die(dies: int, tokens: int) -> None:
    groups = [with_copies(redundant).decode.group(dies) for redundant in range(0, 513, 16)]
    loads = [group.busiest(tokens) for group in groups]
    assert all(later <= load * (1 + 1e-12) for load, later in itertools.pairwise(loads))
    assert loads[-1] < loads[0]
    held = [group.experts for group in groups]
    assert held == sorted(held)


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_copies_take_memory(role: Role) -> None:
    plans = [with_copies(redundant).hbm_plan(role, 64) for redundant in (0, 64, 256, 512)]
    weights = [plan.weights for plan in plans]
    assert weights == sorted(set(weights))
    tokens = [plan.kv_tokens for plan in plans]
    assert tokens == sorted(set(tokens), reverse=True)


def test_other_numbers_of_copies_are_priced_and_said_to_be_in_no_row() -> None:
    load, prompts = DecodeLoad(48, 48 * 4096), PrefillLoad(262_144, 262_144 * 2048.0)
    asked = with_copies(32)
    assert asked.decode_step_s(load) == MODEL.decode_step_s(load)
    assert asked.prefill_step_s(prompts) == MODEL.prefill_step_s(prompts)
    assert asked.hbm_plan("decode", 320) == MODEL.hbm_plan("decode", 320)
    load = DecodeLoad(48, 48 * 4096, dies=256)
    assert with_copies(0).decode_step_s(load) >= with_copies(32).decode_step_s(load) > 0
    few, many = (with_copies(redundant).decode.group(320) for redundant in (0, 32))
    assert few.routed_visits == pytest.approx(8 * 320 / 256), "of 288 dies 256 have an expert"
    assert few.busiest(96) > many.busiest(96)
    assert "no row has 0 redundant experts" in decode_trust(with_copies(0), 96, 4096).text
    assert decode_trust(with_copies(32), 96, 4096) == decode_trust(MODEL, 96, 4096)


@pytest.mark.parametrize(
    ("model", "redundant", "told"),
    [
        ("deepseek-r1", -1, "redundant_experts is -1; it must be a whole number from 0 up"),
        ("deepseek-r1", 1793, "redundant_experts is 1793; for 256 experts up to 1792 are priced"),
        ("llama-3.1-8b", 8, "redundant_experts is 8, but llama-3.1-8b is dense"),
    ],
)
def test_copies_that_cannot_be(model: str, redundant: int, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        CostModel(ASCEND, known(model), decode=Parallelism(redundant_experts=redundant))
