"""`cloudmatrix cost` of attention and LM head over several dies, and of layouts of prefill."""

import re

import pytest

from hardware.errors import SpecError
from serving.errors import ConfigError
from tests.cli.cost_command import answer, cost, printed

pytestmark = pytest.mark.usefixtures("wide")


def test_attention_and_head_over_several_dies(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--dies", "16", "--attention-tp", "2", "--head-tp", "8", "--batch", "16", "--explain")
    for words in (
        "tokens per group of 2 dies",
        "reduce-scatter and all-gather",
        "116 M weights",
        "no row has attention",
    ):
        assert words in text
    found = answer(capsys, "--dies", "16", "--attention-tp", "2")
    assert found["kv_tokens_per_group"] > answer(capsys, "--dies", "16")["kv_tokens_per_die"]
    assert found["expected_error"] is None
    largest = [answer(capsys, "--tpot", "40ms", "--dies", "16", "--attention-tp", tp)["batch_per_npu"] for tp in "12"]
    assert largest[0] < largest[1], "a die that holds fewer weights holds more sequences"


def test_experts_over_several_dies(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--dies", "64", "--expert-tp", "8", "--batch", "1", "--drafts", "0", "--explain")
    for words in ("EP8 x TP8", "x 5.5 M weights", "not checked: no row has expert TP 8"):
        assert words in text


def test_redundant_copies_of_experts(capsys: pytest.CaptureFixture[str]) -> None:
    none, many = (answer(capsys, "--dies", "64", "--redundant", copies) for copies in ("0", "256"))
    assert many["kv_tokens_per_die"] < none["kv_tokens_per_die"]
    assert "not checked: no row has 0 redundant experts" in printed(capsys, "--redundant", "0")


def test_layouts_of_prefill(capsys: pytest.CaptureFixture[str]) -> None:
    question = ("--prefill", "131072", "--dies", "32")
    own, named, other, fewer = (
        answer(capsys, *question, *words)["tokens_per_s_per_npu"]
        for words in (
            (),
            ("--prefill-attention", "sp-tp-sp"),
            ("--prefill-attention", "data-parallel"),
            ("--prefill-attention", "data-parallel", "--prompt", "16384"),
        )
    )
    assert own == named < other, "one prompt for each die, and nothing to exchange"
    assert fewer < 0.5 * other, "eight prompts for 32 dies"
    text = printed(capsys, "--prefill", "65536", "--dies", "16", "--attention-tp", "4", "--explain")
    assert "not checked: no row has attention TP 4" in text
    assert "reduce-scatter and all-gather" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--prefill-attention", "sp-tp-sp"), "--prefill-attention goes with --prefill"),
        (("--attention-tp", "3"), "attention_tp is 3, which does not divide the 128 heads"),
        (("--attention-tp", "2", "--dies", "15"), "attention_tp is 2, which does not divide an instance of 15 dies"),
        (("--drafts", "2", "--acceptance", "0.8,0.6,1.5"), "not possible; 0 or more, shares of 0 to 1"),
        (("--redundant", "-1"), "redundant_experts is -1; it must be a whole number from 0 up"),
        (("--expert-tp", "3"), "expert_tp is 3, which does not divide the 2048 columns of an expert"),
        (("--head-tp", "0"), "head_tp is 0; it must be a whole number of dies from 1 up"),
        (("--head-tp", "16", "--device", "h100"), "head_tp is 16, but the scale-up fabric of h100 joins 8"),
        (("--fit", "rows.csv", "--attention-tp", "2"), "--attention-tp is of one step; rows of --fit say their own"),
        (("--prefill", "1e4", "--attention-tp", "2", "--prefill-attention", "sp-tp-sp"), "name one of them"),
    ],
)
def test_divisions_that_cannot_be(words: tuple[str, ...], message: str) -> None:
    with pytest.raises((ConfigError, SpecError), match=re.escape(message)):
        cost(*words)


def test_acceptance_by_position(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (answer(capsys, "--acceptance", shares)["tpot_s"] for shares in ("0.85", "0.85,0.6"))
    assert one == two, "one draft by default"
    question = ("--drafts", "2", "--acceptance")
    assert answer(capsys, *question, "0.85,0.85")["tpot_s"] == pytest.approx(
        answer(capsys, *question, "0.85")["tpot_s"]
    )
    assert answer(capsys, *question, "0.85,0.6")["tpot_s"] > answer(capsys, *question, "0.85")["tpot_s"]
