"""Stated errors: what they are made of, that they contain the published rows, and that their table is of this model."""

import pytest

from hardware.cost import DEEPSEEK_R1, CostModel, load_device
from hardware.cost.checked import (
    CheckedRow,
    StepClass,
    attention_kind,
    checked_rows,
    coverage,
    spread,
    stated,
    table_text,
)
from hardware.cost.checked_sources import engine_rows, system_rows
from hardware.cost.trust import Trust, decode_trust, npus_text, prefill_trust
from tests.hardware.cost.known import KNOWN, known


def row(kind: str, device: str, attention: str, engine: str, error: float) -> CheckedRow:
    return CheckedRow(kind, device, attention, engine, "", error)


ROWS = [
    *(row("decode", "a", "latent", "x", error) for error in (0.01, -0.06, 0.02, 0.03)),
    row("decode", "b", "grouped", "y", -0.12),
    row("decode", "c", "sparse", "z", 0.4),
    row("prefill", "a", "latent", "x", 0.9),
]


def test_a_spread_contains_nine_of_ten() -> None:
    assert spread([0.01, -0.02]) == 0.05, "published values are no more precise than that"
    assert spread([0.1, -0.3]) == 0.3
    assert spread([0.01 * n for n in range(1, 20)]) == pytest.approx(0.18), "18 of 19, so that 9 of 10 further ones are"


def test_own_rows_or_the_widest_of_the_neighbours() -> None:
    own = stated(StepClass("decode", "a", "latent", "x"), ROWS)
    assert (own.error, own.neighbours) == (0.06, False)
    divided = stated(StepClass("decode", "a", "latent", "x"), ROWS, like_rows=False)
    assert (divided.error, divided.neighbours) == (0.06, True)
    between = stated(StepClass("decode", "a", "grouped", "y"), ROWS)
    assert (between.error, between.why) == (
        0.12,
        "neighbours (rows): grouped attention 12 % (1), a 6 % (4), y 12 % (1)",
    )
    nowhere = stated(StepClass("decode", "", "latent", "mine"), ROWS)
    assert (nowhere.error, nowhere.why) == (0.4, "neighbours (rows): latent attention 6 % (4), all of decode 40 % (6)")


def test_stated_errors_contain_nine_of_ten_rows_and_are_narrow() -> None:
    rows = checked_rows()
    one, whole = (coverage(rows, whole_class=whole_class) for whole_class in (False, True))
    assert one.contained >= 0.9
    assert whole.contained >= 0.9
    assert one.width <= 0.15
    assert whole.width <= 0.18


def test_the_table_is_of_this_cost_model() -> None:
    """After a change of the cost model or of its rows: python -m hardware.cost.checked_sources."""
    text = table_text(checked_rows()).splitlines()
    fresh = table_text([*system_rows(), *engine_rows()]).splitlines()
    assert text[-len(fresh) + 1 :] == fresh[1:]


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("device", ["ascend-910c", "h200"])
def test_every_answer_has_a_number(name: str, device: str) -> None:
    model = CostModel(load_device(device), known(name))
    for trust in (decode_trust(model, 16, 4096, 0), prefill_trust(model, 4096, 4096)):
        assert 0.05 <= trust.error < 1
        assert f"{trust.error * 100:.0f}"[0] in trust.text
    assert attention_kind(DEEPSEEK_R1) == "latent"


def test_npus_are_as_far_off_as_the_steps_of_their_pools() -> None:
    text = npus_text(Trust(0.1, ""), Trust(0.3, ""), decode_npus=30, prefill_npus=10)
    assert text == "NPUs: within 15 %, 34 to 46"
