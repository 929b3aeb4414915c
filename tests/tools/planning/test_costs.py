"""Costs of plans by the user's prices: a sum done by hand, files, and refusals."""

import dataclasses
import math
from pathlib import Path

import pytest

from serving.errors import ConfigError
from serving.tools.planning import words
from serving.tools.planning.bounds import SearchLimits
from serving.tools.planning.candidate import Candidate, Shape
from serving.tools.planning.costs import MoneyPrices, PlanPrices, PowerDraw, plan_cost, read_prices
from serving.tools.planning.files import as_json, markdown, page
from serving.tools.planning.planner import PlanQuestion, plan
from serving.tools.planning.trace import TraceChoice
from serving.tools.planning.verdict import PlanTarget
from tests.tools.planning.fake import FakeSupernode
from tests.tools.planning.traces import config, steady

EXAMPLE = Path(__file__).parents[3] / "examples" / "prices.toml"
PREFILL, DECODE = Shape(16, 16_384), Shape(32, 48)
PLAN = Candidate(PREFILL, 2, DECODE, 1)
PRICES = PlanPrices(MoneyPrices("CHF", 2.0, 8.0, 0.5), PowerDraw(600.0, 200.0, 1000.0, 1.5))
VERDICT = dataclasses.replace(
    FakeSupernode({PREFILL: 1}, {DECODE: 1}).verdict(PLAN), load_s=1800.0, prompt_tokens=10_000_000,
    output_tokens=500_000, prefill_running=0.5, decode_running=1.0,
)  # fmt: skip


def test_a_sum_done_by_hand_and_one_of_what_was_not_given() -> None:
    """32 NPUs and 4 of 8 hosts each; prefill 32 x 400 W, decode 32 x 600 W, hosts 4 kW each, all x 1.5."""
    prefill_kw, decode_kw = 1.5 * (32 * 0.4 + 4), 1.5 * (32 * 0.6 + 4)
    prefill, decode = (32 * 2.0 + 4 * 8.0 + kw * 0.5 for kw in (prefill_kw, decode_kw))
    cost = plan_cost(PLAN, VERDICT, PRICES)
    assert cost.per_hour == pytest.approx(prefill + decode)
    assert cost.in_per_million == pytest.approx(prefill * 0.5 / 10)
    assert cost.out_per_million == pytest.approx(decode * 0.5 / 0.5)
    assert cost.watts == pytest.approx(1000 * (prefill_kw + decode_kw))
    assert cost.tokens_per_joule == pytest.approx(10_500_000 / (cost.watts * 1800))
    assert cost.out_tokens_per_joule == pytest.approx(500_000 / (cost.watts * 1800))

    dry = plan_cost(PLAN, VERDICT, PlanPrices(MoneyPrices(npu_hour=2.0)))
    assert (dry.per_hour, dry.watts) == (128.0, 0.0)
    assert math.isnan(dry.tokens_per_joule)
    none = plan_cost(PLAN, dataclasses.replace(VERDICT, prompt_tokens=0, output_tokens=0), PRICES)
    assert math.isnan(none.in_per_million)
    assert math.isnan(none.out_per_million)


def test_the_example_is_read_and_says_that_it_is_made_up() -> None:
    prices = read_prices(EXAMPLE)
    assert "Invented" in EXAMPLE.read_text(encoding="utf-8")
    assert prices.text == (
        "NPU 2 EUR/h, host 3 EUR/h, 0.15 EUR/kWh; NPU 600 W busy, 200 W idle, host 1500 W, overhead 1.2"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[money]\nnpu_price = 2\n", r"npu_price.*"),
        ("[money]\nnpu_hour = -1\n", "npu_hour"),
        ("[power]\noverhead = 0.5\nnode_watts = 1\n", "overhead"),
        ("[money]\nkwh = 0.2\n", "no price and no watts above 0: see examples/prices.toml"),
        ("[power]\nnpu_idle_watts = 300\n", "npu_idle_watts = 300 is more than npu_busy_watts = 0"),
        ("[power\n", "TOML"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_prices(file)
    assert "\n" not in str(caught.value)


def test_every_plan_of_an_answer_has_its_cost_and_the_readers_prices_beside_it(tmp_path: Path) -> None:
    trace = steady(tmp_path / "t.jsonl", rate_per_s=10.0, seconds=8.0)
    wanted = SearchLimits((16,), (32,), 80, (16_384,), (48,))
    order = PlanQuestion(config(), TraceChoice(trace), PlanTarget(2.0, 0.05, 0.9), wanted, "least")
    bare = plan(order)
    assert not words.cost_table(bare).rows
    found = plan(dataclasses.replace(order, prices=PRICES))
    assert found.best is not None
    assert all(one.cost is not None for one in [found.best, *found.options])
    assert len(words.cost_table(found).rows) == 1 + len(found.options)
    for text in (markdown(found), page(found)):
        assert "CHF per 1M in" in text
        assert PRICES.text in text
    assert b'"in_per_million"' in as_json(found)
    assert found.best.verdict.output_tokens == 80 * 40


def test_tokens_of_requests_that_missed_a_limit_are_of_no_use(tmp_path: Path) -> None:
    trace = steady(tmp_path / "t.jsonl", rate_per_s=60.0, seconds=10.0)
    wanted = SearchLimits((16,), (32,), 48, (16_384,), (48,))
    order = PlanQuestion(config(), TraceChoice(trace), PlanTarget(2.0, 0.05, 0.9), wanted, "goodput", prices=PRICES)
    best = plan(order).best
    assert best is not None
    assert best.verdict.attainment < 0.9
    assert best.verdict.output_tokens == round(best.verdict.attainment * 600) * 40
