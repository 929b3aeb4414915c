"""An engine's steps: the paper's engine changes no bit, another one's take longer by the factor of its profile."""

from dataclasses import replace

import pytest

from hardware.cost import CostModel, DecodeLoad, PrefillLoad, load_device
from hardware.cost.engine_profile import EnginePhase, load_engine
from hardware.cost.trust import decode_trust, engine_text_of, prefill_trust

ASCEND = load_device("ascend-910c")
PLAIN = CostModel(ASCEND)
DECODES = [
    DecodeLoad(requests, requests * context, mean, dies, drafts, microbatch)
    for requests, context, mean, dies, drafts, microbatch in (
        (48, 4096, None, 320, 1, None), (4, 4100.5, 3.25, 320, 0, None), (1, 17, 0.01, 32, 1, False),
        (64.5, 1536, None, 144, 1, True), (0, 0, None, 320, 1, None),
    )
]  # fmt: skip
PREFILLS = [
    PrefillLoad(262_144, 262_144 * 2048.0), PrefillLoad(1, 0.5), PrefillLoad(8191.5, 8191.5 * 900, 16, microbatch=False)
]  # fmt: skip


def test_the_paper_s_engine_changes_no_bit() -> None:
    own = CostModel(ASCEND, engine=load_engine("cloudmatrix-infer"))
    for load in DECODES:
        assert own.decode_step_s(load) == PLAIN.decode_step_s(load)
        assert own.decode_step(load) == PLAIN.decode_step(load)
    for prefill in PREFILLS:
        assert own.prefill_step_s(prefill) == PLAIN.prefill_step_s(prefill)
        assert own.prefill_step(prefill) == PLAIN.prefill_step(prefill)
    tables = own.decode_table(), PLAIN.decode_table()
    for requests, context in ((48, 196_608), (3, 9_999.5), (7.5, 30_000)):
        assert tables[0].seconds(requests, context, 2.9) == tables[1].seconds(requests, context, 2.9)
    assert own.prefill_table().seconds(9_000, 3e7) == PLAIN.prefill_table().seconds(9_000, 3e7)
    for batch in (1, 8, 24, 96, 128):
        assert own.tpot_s(batch, 4096) == PLAIN.tpot_s(batch, 4096)
    assert own.max_batch(0.03, 4096) == PLAIN.max_batch(0.03, 4096)


@pytest.fixture
def other() -> CostModel:
    """An engine with every kind of additional time."""
    profile = load_engine("vllm-ascend")
    assert profile.decode is not None
    assert profile.prefill is not None
    decode = replace(profile.decode, work=1.25, step_s=0.002, token_s=1e-5)
    return CostModel(ASCEND, engine=replace(profile, decode=decode, prefill=replace(profile.prefill, work=2.5)))


def test_steps_take_as_much_longer_as_the_profile_says_and_its_operators_add_up(other: CostModel) -> None:
    load, prefill = DECODES[0], PREFILLS[0]
    assert other.decode_step_s(load) == 1.25 * PLAIN.decode_step_s(load) + 0.002 + 1e-5 * 96
    assert other.prefill_step_s(prefill) == 2.5 * PLAIN.prefill_step_s(prefill)
    assert other.tpot_s(96, 4096) == pytest.approx(other.decode_step_s(load) / 1.7)
    assert 0 < other.max_batch(0.03, 4096) < PLAIN.max_batch(0.03, 4096)
    table = other.decode_table()
    assert table.seconds(48, 48 * 4096.0) == pytest.approx(other.decode_step_s(load), rel=1e-3)
    assert other.prefill_table().seconds(262_144, 262_144 * 2048.0) == pytest.approx(other.prefill_step_s(prefill))
    step = other.decode_step(replace(DECODES[0], microbatch=False))
    assert sum(part.time_s for part in step.parts) == pytest.approx(step.total_s)
    assert step.parts[-1].name == "engine's own time"
    assert step.parts[-1].time_s == pytest.approx(0.002 + 1e-5 * 96)


# --- trust --------------------------------------------------------------------------------------------------------
def test_trust_knows_the_engine() -> None:
    vllm = CostModel(ASCEND, engine=load_engine("vllm-ascend"))
    assert engine_text_of(vllm).startswith("vllm-ascend: ")
    assert engine_text_of(PLAIN) == "CloudMatrix-Infer itself; open engines need more, see --engine"
    at_row = decode_trust(vllm, 46.6, 4250, 1, dies=32)
    assert at_row.error == 0.10
    assert at_row.text.startswith("expect within 10 %, inside of what was fitted: batch 46.6 per NPU")
    assert prefill_trust(vllm, 2048, 3500, dies=16).error == 0.15
    for away in (
        decode_trust(vllm, 93.2, 4250, 1, dies=32), decode_trust(vllm, 46.6, 8500, 1, dies=32),
        decode_trust(vllm, 46.6, 4250, 2, dies=32), decode_trust(vllm, 46.6, 4250, 1, dies=64),
    ):  # fmt: skip
        assert away.error == pytest.approx(0.19), away
    assert decode_trust(vllm, 93.2, 8500, 1, dies=64).error == pytest.approx(0.15 + 3 * 0.04)
    assert (prefill_trust(vllm, 4096, 3500, dies=16).error or 0) > 0.2


def test_what_a_profile_does_not_know_is_not_checked() -> None:
    xds = CostModel(ASCEND, engine=load_engine("xdeepserve"))
    trust = prefill_trust(xds, 8192, 4096)
    assert trust.text.startswith("not checked: no prefill step of xdeepserve is known")
    elsewhere = CostModel(load_device("h800"), engine=load_engine("vllm-ascend"))
    assert decode_trust(elsewhere, 46.6, 4250, dies=32).text.startswith(
        "not checked: vllm-ascend was measured on ascend-910c, not on this device; expect within "
    )
    changed = replace(ASCEND, calibration=replace(ASCEND.calibration, sampling_s=1.0))
    vllm = CostModel(changed, engine=load_engine("vllm-ascend"))
    assert "not on this device; expect within" in decode_trust(vllm, 46.6, 4250, dies=32).text
    mine = replace(load_engine("vllm-ascend"), model="my-model")
    cost = CostModel(ASCEND, engine=mine)
    assert decode_trust(cost, 46.6, 4250, dies=32).text.startswith(
        "not checked: vllm-ascend was measured with my-model, not with deepseek-r1; expect within "
    )
    same = CostModel(ASCEND, replace(PLAIN.shape, name="my-model", hidden=4096), mine)
    assert decode_trust(same, 46.6, 4250, dies=32).error == 0.10


def test_a_phase_is_linear_and_nothing_is_promised_far_away() -> None:
    for trust in (
        prefill_trust(PLAIN, 1e9 / 32, 4096),
        prefill_trust(PLAIN, 8192, 1e30),
        decode_trust(PLAIN, 1e30, 4096),
    ):
        assert trust.error > 0.5
    assert "more than 100 %" in decode_trust(PLAIN, 1e30, 4096).text
    phase = EnginePhase(2.0, 0.5, 0.25, 1, 1, 0.1, (), "here")
    assert phase.seconds(3.0, 4.0) == 2 * 3 + 0.5 + 0.25 * 4
