"""`cloudmatrix cost` of instances whose experts have dies of their own."""

import re

import pytest

from hardware.cost import CostModel, load_device
from hardware.cost.published_other import XDEEPSERVE_ROWS
from hardware.errors import SpecError
from serving.errors import ConfigError
from tests.cli.cost_command import answer, cost, printed

PUBLISHED = ("--dies", "768", "--expert-dies", "288", "--batch", "120", "--context", "3072")

pytestmark = pytest.mark.usefixtures("wide")


def test_the_published_deployment(capsys: pytest.CaptureFixture[str]) -> None:
    row = next(row for row in XDEEPSERVE_ROWS if row.name == "split 480 : 288, 96 per die")
    found = answer(capsys, *PUBLISHED)
    assert found["step"]["total_s"] * 1e3 == row.predict(CostModel(load_device("ascend-910c")))
    assert found["stages"]["bound"] == "attention"
    assert found["stages"]["send_s"] == pytest.approx(172e-6)
    assert found["expert_die"]["weights"] > 5e9
    assert found["expected_error"] is None
    text = printed(capsys, *PUBLISHED, "--explain")
    for words in (
        "decode on 480 dies of attention in 3 domains + 288 of experts",
        "one deployment only, xDeepServe's 480 + 288 dies",
        "attention sets the pace",
        "96 sequences per attention die",
        "tokens per attention die",
        "send to experts",
        "hidden: every 579 us, 3 domains x the longest of: send 172 us, experts 169 us, return 193 us",
        "scheduling",
        "MTP layer",
        "last return",
    ):
        assert words in text


def test_few_expert_dies_keep_attention_waiting(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--dies", "320", "--expert-dies", "32", "--batch", "120", "--explain")
    assert "experts sets the pace" in text
    assert "waiting for experts' turn" in text
    alone = printed(capsys, "--dies", "320", "--expert-dies", "96", "--domains", "1", "--batch", "1", "--explain")
    assert "no half batches; round trip sets the pace" in alone
    assert "a part of the batch is not back yet" in alone


def test_the_largest_batch(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "--tpot", "62ms", "--dies", "768", "--expert-dies", "288", "--context", "3072")
    assert found["batch_per_npu"] == 120
    text = printed(capsys, "--tpot", "62ms", "--dies", "768", "--expert-dies", "288", "--context", "3072", "--explain")
    assert "limited by latency" in text
    assert "scheduling" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--domains", "2"), "--domains take turns at the dies of --expert-dies"),
        (("--expert-dies", "320"), "expert_dies is 320, which leaves no die of 320 for attention"),
        (("--expert-dies", "96"), "domains is 3, which does not divide 224 attention dies"),
        (("--expert-dies", "96", "--domains", "2", "--attention-tp", "2"), "beside expert_dies only 1 is priced"),
        (("--prefill", "65536", "--expert-dies", "32"), "--expert-dies goes with decode; with --prefill"),
        (("--fit", "rows.csv", "--expert-dies", "32"), "--expert-dies is of one step; rows of --fit say their own"),
    ],
)
def test_what_cannot_be(words: tuple[str, ...], message: str) -> None:
    with pytest.raises((ConfigError, SpecError), match=re.escape(message)):
        cost(*words)
