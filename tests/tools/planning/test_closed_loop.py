"""Plans for a closed loop: this many requests at a time, at any times of the trace."""

import dataclasses
from pathlib import Path

import pytest

from serving.cli import command_parser, plan
from serving.errors import ConfigError
from serving.tools.planning import words
from serving.tools.planning.bounds import SearchLimits
from serving.tools.planning.candidate import Candidate, Shape
from serving.tools.planning.candidate_run import PlanSetting, measure
from serving.tools.planning.files import markdown, page
from serving.tools.planning.planner import PlanQuestion
from serving.tools.planning.planner import plan as planned
from serving.tools.planning.trace import TraceChoice
from serving.tools.planning.verdict import PlanProbe, PlanTarget
from tests.tools.planning.traces import CONFIG_FILE, config, steady

TARGET = PlanTarget(1.0, 0.05, 0.95)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As an open loop it would need hardly any instance: a request in ten seconds."""
    return steady(tmp_path_factory.mktemp("trace") / "steady.jsonl", rate_per_s=0.1, seconds=600.0, prompt=4000)


def question(trace: Path, concurrency: int | None, **changes: object) -> PlanQuestion:
    wanted = SearchLimits((16,), (32,), 128, (16_384,), (48,))
    usual = PlanQuestion(config(), TraceChoice(trace, concurrency=concurrency), TARGET, wanted, "least")
    return dataclasses.replace(usual, **changes)  # type: ignore[arg-type]


def test_more_at_a_time_need_more_npus_whatever_the_times_are(trace: Path) -> None:
    few, many = (planned(question(trace, concurrency)).best for concurrency in (2, 60))
    assert few is not None
    assert many is not None
    assert few.candidate.npus == 48 < many.candidate.npus


def test_a_factor_on_the_load_is_one_on_the_requests_at_a_time(trace: Path) -> None:
    choice = TraceChoice(trace, concurrency=8)
    assert choice.faster(2.5).concurrency == 20
    assert choice.faster(0.01).concurrency == 1
    setting = PlanSetting(config(), choice, choice, TARGET)
    one = Candidate(Shape(16, 16_384), 1, Shape(32, 48), 1)
    usual, more = (measure(setting, PlanProbe(one, rate=rate)) for rate in (1.0, 8.0))
    assert more.goodput_per_s != usual.goodput_per_s
    assert more.ttft_p99_s > usual.ttft_p99_s


def test_an_answer_has_headroom_and_says_that_it_is_for_a_loop(trace: Path) -> None:
    found = planned(question(trace, 4, headroom=True))
    assert found.headroom is not None
    assert found.headroom.ttft > 1
    for text in (markdown(found), page(found)):
        assert "4 at a time" in text
        assert words.headroom_text(found) in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--concurrency", "0"), "--concurrency 0: at least 1"),
        (("--concurrency", "5", "--rate", "2"), "--rate is for an open loop"),
        (("--concurrency", "5", "--losses"), "--losses is for an open loop"),
    ],
)
def test_what_a_loop_has_no_answer_to_is_refused(trace: Path, flags: tuple[str, ...], message: str) -> None:
    given = ["plan", "--config", str(CONFIG_FILE), "--trace", str(trace), "--quiet", *flags]
    with pytest.raises(ConfigError, match=message):
        plan.run(command_parser("plan").parse_args(given))
