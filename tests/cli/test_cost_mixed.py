"""`cloudmatrix cost --aggregated`: prompts beside running decodes."""

import json

import pytest

from hardware.errors import SpecError
from serving.errors import ConfigError
from tests.cli.cost_command import cost

STEP = ("--aggregated", "--prefill", "8192", "--batch", "48")

pytestmark = pytest.mark.usefixtures("wide")


def test_a_mixed_step_is_held_against_both_apart(capsys: pytest.CaptureFixture[str]) -> None:
    cost(*STEP, "--json")
    found = json.loads(capsys.readouterr().out)
    cost("--batch", "48", "--dies", "32", "--json")
    decode = json.loads(capsys.readouterr().out)
    cost("--prefill", "8192", "--json")
    prefill = json.loads(capsys.readouterr().out)
    assert found["decode_tpot_s"] == pytest.approx(decode["tpot_s"])
    assert found["prefill_step_s"] == prefill["step"]["total_s"]
    assert 0 < found["saved_s"] < found["decode_step_s"]
    assert found["step_s"] + found["saved_s"] == pytest.approx(found["decode_step_s"] + found["prefill_step_s"])
    assert found["expected_error"] is None
    cost(*STEP)
    text = capsys.readouterr().out
    for words in (
        "aggregated instance of 32 dies",
        "nobody has published such a step",
        "ms meanwhile",
        "together it saves",
    ):
        assert words in text
    assert "does not fit" not in text


def test_a_batch_beyond_the_memory_is_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    cost(*STEP[:-1], "4000")
    assert "this batch does not fit into the memory" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--aggregated",), "say with --prefill how many prompt tokens"),
        ((*STEP, "--explain"), "--explain takes one kind of step apart"),
        (("--aggregated", "--fit", "rows.csv"), "--aggregated is of one step; rows of --fit"),
        (
            (*STEP, "--dies", "320", "--expert-dies", "96", "--domains", "2"),
            "no aggregated with experts on dies of their own",
        ),
        ((*STEP, "--dies", "2"), "does not fit"),
    ],
)
def test_mistakes_are_one_line(words: tuple[str, ...], message: str) -> None:
    with pytest.raises((ConfigError, SpecError), match=message) as caught:
        cost(*words)
    assert "\n" not in str(caught.value)
