"""`cloudmatrix plan` as it is typed."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from serving.cli import command_parser, plan
from serving.errors import ConfigError
from serving.tools.planning.candidate import Candidate, Shape
from serving.tools.planning.planner import PlanQuestion
from tests.tools.planning.traces import CONFIG_FILE, steady

SMALL = ("--sizes-prefill", "16", "--sizes-decode", "64", "--processes", "1", "--attainment", "0.9")


def parsed(*words: str) -> argparse.Namespace:
    return command_parser("plan").parse_args(["plan", "--config", str(CONFIG_FILE), *words])


def asked(*words: str) -> PlanQuestion:
    return plan.order_of(parsed("--trace", "t", *words))


def test_the_order_follows_from_the_flags() -> None:
    assert (asked().question, asked().wanted.budget) == ("least", 384)
    assert asked("--npus", "96").question == "goodput"
    assert asked("--npus", "96", "--least").question == "least"
    assert asked("--highest-rate").question == "rate"
    assert (asked().target.ttft_s, asked().target.tpot_s, asked().target.attainment) == (2.0, 0.05, 0.99)
    given = asked("--ttft", "1", "--tpot", "0.02", "--attainment", "0.9").target
    assert (given.ttft_s, given.tpot_s, given.attainment) == (1.0, 0.02, 0.9)
    wanted = asked(
        "--sizes-prefill", "8,16,8", "--sizes-decode", "64", "--step-tokens", "2048", "--batch", "48,24"
    ).wanted
    assert (wanted.prefill_sizes, wanted.prefill_limits, wanted.decode_limits) == ((8, 16), (2048,), (48, 24))
    seeded = asked("--seed", "7")
    assert seeded.trace.seed == seeded.config.simulation.seed == 7


@pytest.mark.parametrize(
    "words", [("--sizes-prefill", "a"), ("--batch", "0"), ("--headroom", "0.5"), ("--least", "--highest-rate")]
)
def test_nonsense_is_refused_by_the_parser(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--trace", "t", *words)
    assert "error" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--processes", "0"), ("--cache-nodes", "-1"), ("--rate", "0"), ("--npus", "999")])
def test_impossible_orders_are_one_line(words: Sequence[str], tmp_path: Path) -> None:
    arguments = parsed("--trace", str(steady(tmp_path / "t.jsonl", seconds=2.0)), *words)
    with pytest.raises(ConfigError) as caught:
        plan.run(arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--sizes-prefill", "1"), "no prefill size is possible"),
        (("--sizes-decode", "1"), "no decode size is possible"),
        (("--attention-tp", "3"), "3"),
        (("--columns", "a"), "no column for input and output"),
        (("--set", "decode.nonsense=1"), "unknown key `nonsense`"),
    ],
)
def test_what_cannot_be_is_refused_before_the_trace_is_read(words: Sequence[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        plan.run(parsed("--trace", "is-not-there.csv", *words))
    assert "is-not-there" not in str(caught.value)


def test_headroom_is_a_factor_on_the_load_or_a_question() -> None:
    assert (asked().headroom, asked().load_factor) == (False, 1.0)
    assert (asked("--headroom").headroom, asked("--headroom").load_factor) == (True, 1.0)
    assert (asked("--headroom", "2.5").headroom, asked("--headroom", "2.5").load_factor) == (False, 2.5)
    both = ("plan", "--compare", str(CONFIG_FILE), str(CONFIG_FILE), "--trace", "t", "--headroom", "2")
    with pytest.raises(ConfigError, match="--headroom with a number is for a search"):
        plan.comparison_of(command_parser("plan").parse_args(both))


def test_tables_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = steady(tmp_path / "t.jsonl", rate_per_s=2.0, seconds=4.0)
    code = plan.run(parsed("--trace", str(path), *SMALL, "--out", str(tmp_path / "out")))
    shown = capsys.readouterr().out
    assert code == 0
    assert "80 NPUs are the fewest" in " ".join(shown.split())
    assert Candidate(Shape(16, 1), 1, Shape(64, 1), 1).label in shown
    assert sorted(one.name for one in (tmp_path / "out").iterdir()) == [
        "plan.html",
        "plan.json",
        "plan.md",
        "plan.toml",
    ]


def test_json_alone_is_on_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = steady(tmp_path / "t.jsonl", rate_per_s=2.0, seconds=4.0)
    assert plan.run(parsed("--trace", str(path), *SMALL, "--json")) == 0
    assert json.loads(capsys.readouterr().out)["best"]["holds"]


def test_nothing_that_holds_is_told_by_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = steady(tmp_path / "t.jsonl", rate_per_s=80.0, seconds=2.0)
    assert plan.run(parsed("--trace", str(path), *SMALL, "--npus", "80", "--least")) == 1
    assert "No plan" in capsys.readouterr().out
