"""Values that an engine's owner states: host time, captured graphs, sampling; each a separate term."""

from dataclasses import replace
from typing import Any

import pytest

from hardware.cost import CostModel, DecodeLoad, PrefillLoad, load_device
from hardware.cost.engine_fit import fit_engine
from hardware.cost.engine_profile import engine_text, load_engine, parse_engine
from hardware.cost.measured_file import MeasuredRow
from hardware.cost.trust import decode_trust
from hardware.errors import SpecError

ASCEND = load_device("ascend-910c")
PROFILE = load_engine("vllm-ascend")


def model(**stated: Any) -> CostModel:
    assert PROFILE.decode is not None
    return CostModel(ASCEND, engine=replace(PROFILE, decode=replace(PROFILE.decode, **stated)))


PLAIN = model()


def load(requests: float) -> DecodeLoad:
    return DecodeLoad(requests, requests * 4096, dies=32)


def tpot(cost: CostModel, batch: float) -> float:
    return cost.tpot_s(batch, 4096, dies=32)


def test_time_per_token_steps_at_a_bucket_s_edge() -> None:
    cost = model(graph_batches=(8, 16, 32))
    assert cost.decode_step_s(load(8)) == PLAIN.decode_step_s(load(8))
    assert cost.decode_step_s(load(32)) == PLAIN.decode_step_s(load(32))
    assert cost.decode_step_s(load(33)) == PLAIN.decode_step_s(load(33)), "beyond the largest nothing is padded"
    edge = tpot(cost, 18) - tpot(cost, 16), tpot(PLAIN, 18) - tpot(PLAIN, 16)
    inside = tpot(cost, 30) - tpot(cost, 28), tpot(PLAIN, 30) - tpot(PLAIN, 28)
    assert edge[0] > 1.5 * edge[1] > 0, "per NPU: 8 and 9 a die"
    assert 0 <= inside[0] < inside[1], "padding fills up"
    steps = [cost.decode_step_s(load(requests)) for requests in range(1, 60)]
    assert steps == sorted(steps)
    cost = model(graph_batches=(32,))
    padded = replace(load(20), requests=32.0, mean_requests=20)
    assert cost.decode_step_s(load(20)) == PLAIN.decode_step_s(padded)
    assert cost.decode_step_s(load(20)) < PLAIN.decode_step_s(load(32))
    cost = model(graph_batches=(8, 16), eager_step_s=0.004)
    assert cost.decode_step_s(load(16)) == PLAIN.decode_step_s(load(16))
    assert cost.decode_step_s(load(17)) == pytest.approx(PLAIN.decode_step_s(load(17)) + 0.004)


def test_tables_are_exact_at_a_bucket_s_edge() -> None:
    cost = model(graph_batches=(8, 16), eager_step_s=0.004, host_step_s=0.001, sampling_sequence_s=1e-5)
    table = cost.decode_table(dies=32)
    for requests in (7, 8, 9, 15, 16, 17):
        assert table.seconds(requests, requests * 4096.0) == pytest.approx(cost.decode_step_s(load(requests)), rel=1e-3)
    assert table.seconds(16, 16 * 4096.0) == pytest.approx(cost.decode_step_s(load(16)), rel=1e-9)


def test_a_host_s_time_is_waited_for_or_added() -> None:
    bound = model(host_step_s=0.2, overlapped=True)
    assert tpot(bound, 1) == tpot(bound, 16) == pytest.approx(0.2 / 1.7)
    assert tpot(PLAIN, 1) < tpot(PLAIN, 16)
    free = model(host_step_s=0.001, host_sequence_s=1e-5, overlapped=True)
    assert tpot(free, 16) == tpot(PLAIN, 16), "a host that is faster than the device costs nothing"
    cost = model(host_step_s=0.002, host_sequence_s=1e-4, sampling_sequence_s=1e-5)
    more = 0.002 + 10 * (1e-4 + 1e-5)
    assert cost.decode_step_s(load(10)) == pytest.approx(PLAIN.decode_step_s(load(10)) + more)
    assert PROFILE.prefill is not None
    step = PrefillLoad(32_768, 32_768 * 2048.0, 16)
    base_s = PLAIN.prefill_step_s(step)
    slow = CostModel(ASCEND, engine=replace(PROFILE, prefill=replace(PROFILE.prefill, host_step_s=0.05)))
    assert slow.prefill_step_s(step) == pytest.approx(base_s + 0.05)
    assert slow.prefill_table(dies=16).seconds(32_768, 32_768 * 2048.0) == pytest.approx(base_s + 0.05, rel=1e-3)


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("requests", [3, 16, 20])
def test_each_is_a_part_of_its_own_and_parts_add_up(requests: int, overlapped: bool) -> None:
    cost = model(
        graph_batches=(8, 16), eager_step_s=0.004, host_step_s=0.2, overlapped=overlapped, sampling_sequence_s=1e-5
    )
    step = cost.decode_step(replace(load(requests), microbatch=False))
    assert step.total_s == cost.decode_step_s(replace(load(requests), microbatch=False))
    assert sum(part.time_s for part in step.parts) == pytest.approx(step.total_s)
    names = [part.name for part in step.parts]
    assert ("padding to graph of 8" in names) == (requests == 3)
    assert ("no graph" in names) == (requests == 20)
    assert names[-1] == "host, scheduler"
    assert "engine's sampling" in names


def test_the_accuracy_says_that_no_row_measured_them() -> None:
    told = decode_trust(model(host_step_s=0.001), 46.6, 4250, 1, dies=32).text
    assert told.endswith("; the profile's host, graphs and sampling are stated, no row measured them")
    assert "stated, no row" not in decode_trust(PLAIN, 46.6, 4250, 1, dies=32).text


STATED = (
    "host_step_s = 0.002\nhost_sequence_s = 1e-05\noverlapped = true\ngraph_batches = [1, 2, 4]\neager_step_s = 0.01\n"
)


def with_lines(lines: str, *, kind: str = "decode") -> str:
    return engine_text(PROFILE).replace(f"[{kind}]\n", f"[{kind}]\n{lines}", 1)


def test_stated_keys_are_read_and_written_back() -> None:
    profile = parse_engine(with_lines(STATED), "mine")
    assert profile.decode is not None
    assert profile.decode.graph_batches == (1, 2, 4)
    assert parse_engine(engine_text(profile), "mine") == profile
    assert "host" not in engine_text(PROFILE)


@pytest.mark.parametrize(
    ("lines", "kind", "told"),
    [
        ("host_step_s = -1\n", "decode", r"decode\.host_step_s is -1; it must be a number of at least 0"),
        ("overlapped = 1\n", "decode", r"decode\.overlapped is 1; it must be true or false"),
        ("overlapped = true\n", "decode", r"decode\.overlapped needs the host's time"),
        ("graph_batches = [4, 2]\n", "decode", r"decode\.graph_batches is \[4, 2\]; it must be rising whole numbers"),
        ("graph_batches = []\n", "decode", r"decode\.graph_batches is \[\]"),
        ("graph_batches = [1.5]\n", "decode", r"decode\.graph_batches is \[1\.5\]"),
        ("eager_step_s = 0.1\n", "decode", r"decode\.eager_step_s is beyond the largest graph"),
        ("graph_batches = [1]\n", "prefill", r"unknown key prefill\.graph_batches"),
    ],
)
def test_mistakes_in_them_are_told_in_one_line(lines: str, kind: str, told: str) -> None:
    with pytest.raises(SpecError, match=rf"^engine mine: {told}"):
        parse_engine(with_lines(lines, kind=kind), "mine")


# --- fits that keep what is stated ---------------------------------------------------------------------------------
def measured(cost: CostModel, batches: tuple[float, ...]) -> list[MeasuredRow]:
    """Decode steps predicted by a model, as if they had been measured."""
    usual = {"dies": 32.0, "context_tokens": 4096.0, "drafts": 1.0, "acceptance": 0.7}
    return [
        MeasuredRow(f"row {batch}", "decode", usual | {"batch_per_npu": batch, "tpot_ms": tpot(cost, batch) * 1e3}, "")
        for batch in batches
    ]


@pytest.mark.parametrize("overlapped", [False, True])
def test_a_fit_keeps_what_is_stated_and_finds_the_rest(overlapped: bool) -> None:
    stated = {
        "host_step_s": 0.004, "host_sequence_s": 1e-5, "overlapped": overlapped, "sampling_sequence_s": 2e-5,
        "graph_batches": (8, 16), "eager_step_s": 0.01,
    }  # fmt: skip
    truth = model(work=1.4, **stated)
    found = fit_engine(model(work=9.0, **stated), measured(truth, (6, 10, 18, 40)), name="mine", title="mine")
    phase = found.profile.decode
    assert phase is not None
    assert phase.work == pytest.approx(1.4)
    assert phase.step_s == pytest.approx(0, abs=1e-9)
    assert {name: getattr(phase, name) for name in stated} == stated
    assert max(abs(row.error) for row in found.phases[0].rows) < 1e-9
    blind = fit_engine(CostModel(ASCEND), measured(truth, (6, 10, 18, 40)), name="mine", title="mine")
    assert max(abs(row.error) for row in blind.phases[0].rows) > 0.01


def test_a_step_that_is_all_stated_says_nothing_of_the_device() -> None:
    bound = model(host_step_s=0.2, overlapped=True)
    with pytest.raises(
        SpecError, match="row 4: a step of 200 ms, of which the profile states 200 ms: it has no information"
    ):
        fit_engine(bound, measured(bound, (4,)), name="mine", title="mine")
