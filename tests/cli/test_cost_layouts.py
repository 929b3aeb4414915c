"""`cloudmatrix cost` of other layouts: parts over several dies, experts on dies of their own, and mixed steps."""

import json
import re

import pytest

from hardware.cost import CostModel, load_device
from hardware.cost.published_other import XDEEPSERVE_ROWS
from hardware.errors import SpecError
from serving.errors import ConfigError
from tests.cli.cost_command import answer, cost, printed, shown

STEP = ("--aggregated", "--prefill", "8192", "--batch", "48")

pytestmark = pytest.mark.usefixtures("wide")


def test_attention_and_head_over_several_dies(capsys: pytest.CaptureFixture[str]) -> None:
    shown(
        capsys, "--dies 16 --attention-tp 2 --head-tp 8 --batch 16 --explain", "tokens per group of 2 dies",
        "reduce-scatter and all-gather", "116 M weights", "no row has attention",
    )  # fmt: skip
    found = answer(capsys, "--dies", "16", "--attention-tp", "2")
    assert found["kv_tokens_per_group"] > answer(capsys, "--dies", "16")["kv_tokens_per_die"]
    assert found["expected_error"] > 0.05
    largest = [answer(capsys, "--tpot", "40ms", "--dies", "16", "--attention-tp", tp)["batch_per_npu"] for tp in "12"]
    assert largest[0] < largest[1], "a die that holds fewer weights holds more sequences"


def test_experts_over_several_dies(capsys: pytest.CaptureFixture[str]) -> None:
    shown(
        capsys, "--dies 64 --expert-tp 8 --batch 1 --drafts 0 --explain", "EP8 x TP8", "x 5.5 M weights",
        "not checked: no row has expert TP 8",
    )  # fmt: skip


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
    assert own == named > other > 0.9 * own, "nothing to exchange, but keys and values of all heads"
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
        (("--domains", "2"), "--domains share the dies of --expert-dies"),
        (("--expert-dies", "320"), "expert_dies is 320, which leaves no die of 320 for attention"),
        (("--expert-dies", "96"), "domains is 3, which does not divide 224 attention dies"),
        (("--expert-dies", "96", "--domains", "2", "--attention-tp", "2"), "with expert_dies only 1 is priced"),
        (("--prefill", "65536", "--expert-dies", "32"), "--expert-dies goes with decode; with --prefill"),
        (("--fit", "rows.csv", "--expert-dies", "32"), "--expert-dies is of one step; rows of --fit say their own"),
        (("--aggregated",), "give its number of prompt tokens with --prefill"),
        ((*STEP, "--explain"), "--explain explains a step of one kind only"),
        (("--aggregated", "--fit", "rows.csv"), "--aggregated is of one step; rows of --fit"),
        (
            (*STEP, "--dies", "320", "--expert-dies", "96", "--domains", "2"),
            "no aggregated with experts on dies of their own",
        ),
        ((*STEP, "--dies", "2"), "does not fit"),
    ],
)
def test_layouts_that_cannot_be_are_refused_in_one_line(words: tuple[str, ...], message: str) -> None:
    with pytest.raises((ConfigError, SpecError), match=re.escape(message)) as caught:
        cost(*words)
    assert "\n" not in str(caught.value)


def test_acceptance_by_position(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (answer(capsys, "--acceptance", shares)["tpot_s"] for shares in ("0.85", "0.85,0.6"))
    assert one == two, "one draft by default"
    question = ("--drafts", "2", "--acceptance")
    assert answer(capsys, *question, "0.85,0.85")["tpot_s"] == pytest.approx(
        answer(capsys, *question, "0.85")["tpot_s"]
    )
    assert answer(capsys, *question, "0.85,0.6")["tpot_s"] > answer(capsys, *question, "0.85")["tpot_s"]


PUBLISHED = ("--dies", "768", "--expert-dies", "288", "--batch", "120", "--context", "3072")


def test_the_published_deployment(capsys: pytest.CaptureFixture[str]) -> None:
    row = next(row for row in XDEEPSERVE_ROWS if row.name == "split 480 : 288, 96 per die")
    found = answer(capsys, *PUBLISHED)
    assert found["step"]["total_s"] * 1e3 == row.predict(CostModel(load_device("ascend-910c")))
    assert found["stages"]["bound"] == "attention"
    assert found["stages"]["send_s"] == pytest.approx(172e-6, rel=0.05), "published; predicted from dispatch"
    assert found["expert_die"]["weights"] > 5e9
    assert found["expected_error"] > 0.05
    shown(
        capsys, (*PUBLISHED, "--explain"), "decode on 480 dies of attention in 3 domains + 288 of experts",
        "one deployment only, xDeepServe's 480 + 288 dies", "attention sets the pace",
        "96 sequences per attention die", "tokens per attention die", "send to experts",
        "hidden: every 615 us, 3 domains x the longest of: A2E 179 us, experts 125 us, E2A 205 us", "scheduling",
        "MTP layer", "last return",
    )  # fmt: skip


def test_few_expert_dies_keep_attention_waiting(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--dies", "320", "--expert-dies", "32", "--batch", "120", "--explain")
    assert "experts sets the pace" in text
    assert "waiting for experts' turn" in text
    alone = printed(capsys, "--dies", "320", "--expert-dies", "96", "--domains", "1", "--batch", "1", "--explain")
    assert "no half batches; round trip sets the pace" in alone
    assert "a part of the batch is not back yet" in alone


def test_the_largest_batch_apart(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "--tpot", "62ms", "--dies", "768", "--expert-dies", "288", "--context", "3072")
    assert found["batch_per_npu"] == 122, "xDeepServe has 120 at its TPOT of 62 ms"
    text = printed(capsys, "--tpot", "62ms", "--dies", "768", "--expert-dies", "288", "--context", "3072", "--explain")
    assert "limited by latency" in text
    assert "scheduling" in text


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
    assert found["expected_error"] > 0.05
    cost(*STEP)
    text = capsys.readouterr().out
    for words in (
        "aggregated instance of 32 dies",
        "no such step has been published",
        "ms meanwhile",
        "together it saves",
    ):
        assert words in text
    assert "does not fit" not in text


def test_a_batch_beyond_the_memory_is_said_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    cost(*STEP[:-1], "4000")
    assert "this batch does not fit into the memory" in capsys.readouterr().out
