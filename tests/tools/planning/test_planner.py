"""From a trace file to a plan and its files, with real simulations of a small load."""

import dataclasses
import io
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from serving.errors import ConfigError
from serving.tools.planning import words
from serving.tools.planning.bounds import SearchLimits
from serving.tools.planning.candidate import Candidate, Shape
from serving.tools.planning.files import (
    MOST_OTHERS,
    as_json,
    attainment_chart,
    markdown,
    page,
    pareto_front,
    plans_chart,
    show,
    write_all,
)
from serving.tools.planning.plan import ORDERS, CapacityPlan, Option
from serving.tools.planning.planner import PlanQuestion, plan
from serving.tools.planning.trace import TraceChoice
from serving.tools.planning.verdict import PlanTarget, PlanVerdict
from tests.hardware.cost.known import KNOWN
from tests.loadgen.report.browser import checked
from tests.tools.planning.traces import config, steady


def order(path: Path, **changes: object) -> PlanQuestion:
    usual = PlanQuestion(
        config(), TraceChoice(path), PlanTarget(2.0, 0.05, 0.95), SearchLimits((16, 32), (64, 160), 384), "least"
    )
    return dataclasses.replace(usual, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return steady(tmp_path_factory.mktemp("trace") / "steady.jsonl", rate_per_s=40.0, seconds=4.0)


@pytest.fixture(scope="module")
def found(trace: Path) -> CapacityPlan:
    return plan(order(trace))


def test_the_plan_holds_one_instance_less_does_not_and_the_others_say_why(found: CapacityPlan) -> None:
    assert found.best is not None
    assert found.best.holds
    assert found.accuracy.startswith("ascend-910c, engine CloudMatrix-Infer itself; open engines need more")
    assert "prefill: expect within 5 %" in found.accuracy
    assert found.best.candidate.prefills > 1
    cheaper = [one for one in found.options if one.candidate.npus < found.best.candidate.npus]
    assert cheaper
    assert not any(one.holds for one in cheaper)
    assert found.options
    assert all(one.why for one in found.options)
    assert all(one.why for one in found.dropped)


def test_the_same_order_gives_the_same_plan(trace: Path) -> None:
    asked = order(trace, wanted=SearchLimits((16,), (64,), 96))
    first, second = plan(asked), plan(asked)
    assert first.options
    assert as_json(first) == as_json(second)


def test_a_plan_of_a_dense_model_says_that_nothing_was_fitted_to_it(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(KNOWN["qwen3-0.6b"]), encoding="utf-8")
    shipped = config()
    model = dataclasses.replace(shipped.model, path=tmp_path, name="qwen3-0.6b")
    simulation = dataclasses.replace(shipped.simulation, drafts=0)
    settings = dataclasses.replace(shipped, model=model, simulation=simulation)
    found = plan(order(trace, config=settings, wanted=SearchLimits((1, 2), (1, 2), 16)))
    assert found.best is not None
    assert "; NPUs: within " in found.accuracy
    assert "not checked: no published row of grouped attention was fitted; expect within " in found.accuracy
    assert ("accuracy", found.accuracy) in words.facts(found)
    assert all(found.accuracy in text for text in (markdown(found), page(found), as_json(found).decode()))


def test_a_budget_gives_the_split_with_the_highest_goodput(trace: Path) -> None:
    asked = order(trace, question="goodput", wanted=SearchLimits((16, 32), (64,), 112))
    answer = plan(asked)
    assert answer.best is not None
    assert answer.best.verdict.goodput_per_s == max(one.verdict.goodput_per_s for one in [answer.best, *answer.options])
    assert "highest goodput" in words.headline(answer)
    assert all(text in markdown(answer) and text in page(answer) for text in ["order", ORDERS["goodput"]])
    plans = [answer.best, *answer.options]
    keys = [(-one.verdict.goodput_per_s, one.verdict.latency_percent(answer.target)) for one in plans]
    assert keys == sorted(keys)


def test_when_nothing_holds_the_closest_are_shown(trace: Path) -> None:
    answer = plan(order(trace, wanted=SearchLimits((16,), (64,), 80)))
    assert answer.best is None
    kept = [one.verdict.attainment for one in answer.options]
    assert kept
    assert kept == sorted(kept, reverse=True)
    assert words.headline(answer).startswith("No plan with up to 80 NPUs keeps TTFT 2 s and TPOT 50 ms for 95 %")

    answer = plan(order(trace, wanted=SearchLimits((16,), (64,), 80)))
    many = dataclasses.replace(answer, options=answer.options[:1] * 40)
    for one, shown, hidden in ((many, MOST_OTHERS, True), (answer, len(answer.options), False)):
        console = Console(record=True, width=200, file=io.StringIO())
        show(one, console)
        text = console.export_text()
        assert text.count("why not:") == shown
        assert ("the first 12 of 40 other plans" in text) == hidden


def test_the_highest_rate_is_above_a_load_that_is_light(tmp_path: Path) -> None:
    light = steady(tmp_path / "light.jsonl", rate_per_s=4.0, seconds=20.0)
    answer = plan(order(light, question="rate", wanted=SearchLimits((16,), (64,), 96)))
    assert answer.best is not None
    assert answer.rate > 1
    assert answer.best.holds
    assert "x the given rate" in words.headline(answer)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wanted": SearchLimits((16,), (64,), 385)}, "--npus 385: the supernode of this configuration has 384"),
        ({"wanted": SearchLimits((), (64,), 384)}, "each pool needs at least one size"),
        ({"target": PlanTarget(2.0, 0.05, 1.5)}, "attainment is above 0 and at most 1"),
        ({"target": PlanTarget(0.0, 0.05, 0.9)}, "limits are above 0"),
        ({"target": PlanTarget(2.0, 0.001, 0.9)}, "TPOT of 1 ms: the smallest possible is"),
    ],
)
def test_mistakes_are_one_line(trace: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        plan(order(trace, **changes))
    assert "\n" not in str(caught.value)


def test_supernodes_and_modes_of_another_kind_are_refused(trace: Path) -> None:
    asked = order(trace)
    many = dataclasses.replace(asked.config, simulation=dataclasses.replace(asked.config.simulation, supernodes=2))
    with pytest.raises(ConfigError, match="one supernode"):
        plan(dataclasses.replace(asked, config=many))

    asked = order(trace)
    both = dataclasses.replace(asked.config, serving=dataclasses.replace(asked.config.serving, mode="aggregated"))
    with pytest.raises(ConfigError, match="a search chooses prefill and decode pools"):
        plan(dataclasses.replace(asked, config=both))


def test_files_say_the_same_or_cannot_be_written(found: CapacityPlan, tmp_path: Path) -> None:
    paths = write_all(found, tmp_path / "new")
    assert [path.name for path in paths] == ["plan.md", "plan.html", "plan.json", "plan.toml"]
    document = json.loads(paths[2].read_text())
    assert document["schema"] == "cloudmatrix-plan/1"
    assert found.best is not None
    assert document["best"]["candidate"]["prefills"] == found.best.candidate.prefills
    assert found.best.candidate.label in markdown(found)
    assert words.headline(found) in markdown(found)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        write_all(found, tmp_path / "file" / "below")


def test_the_page_is_whole_and_stands_alone(found: CapacityPlan) -> None:
    html = page(found)
    assert not re.search(r'(?:src|href)="(?!#|data:)', html)
    for row in words.rows(found):
        assert row.cells[0] in html
    assert html == page(found)

    chart = plans_chart(found)
    assert chart is not None
    assert found.best is not None
    front, best = chart.traces[0], chart.traces[-1]
    assert (best.name, best.marks) == ("best", [found.best.candidate.label])
    assert (best.xs[0], best.ys[0]) in zip(front.xs, front.ys, strict=True)
    assert front.ys == sorted(front.ys)
    assert sum(len(trace.xs) for trace in chart.traces[1:]) == 1 + len(found.options)
    assert chart.x.low is not None
    assert chart.x.low < min(front.xs)


def test_attainment_is_drawn_with_the_share_that_is_asked_for(found: CapacityPlan, trace: Path) -> None:
    chart = attainment_chart(found)
    assert chart is not None
    assert [(limit.name, limit.value) for limit in chart.limits] == [("asked for: 95 %", 0.95)]
    for points in chart.traces:
        assert all((y >= 0.95) == (points.name != "misses them") for y in points.ys)
    assert sum(len(points.xs) for points in chart.traces) == 1 + len(found.options)
    split = dataclasses.replace(found, question="goodput")
    assert attainment_chart(split).limits == []  # type: ignore[union-attr]
    assert attainment_chart(dataclasses.replace(found, best=None, options=[])) is None


def test_demand_and_bounds_say_what_is_asked_for_and_what_an_instance_can_do(found: CapacityPlan) -> None:
    requests, prompts, uncached, outputs = (row.cells for row in words.demand_table(found).rows)
    assert float(str(requests[3])) == pytest.approx(found.requests / found.demand.duration_s, rel=0.01)
    assert prompts[0] == "prompt tokens"
    assert found.demand.uncached_tokens_per_s <= found.demand.prompt_tokens_per_s
    assert uncached[3]
    assert outputs[1]
    assert {(one.pool, one.npus) for one in found.bounds} >= {("prefill", 16), ("decode", 64)}
    assert found.best is not None
    least = {(one.pool, one.npus, one.limit): one.least for one in found.bounds}
    shape = found.best.candidate.prefill
    assert 1 <= least["prefill", shape.npus, shape.limit] <= found.best.candidate.prefills
    document = markdown(found)
    assert all(title in document for title in ("what is asked for", "tokens/s at its best"))


@pytest.mark.timeout(120)
def test_the_page_in_a_browser(found: CapacityPlan, tmp_path: Path) -> None:
    for seen in checked(page(found), tmp_path, ["npus-attainment", "npus-goodput"]):
        for figure in seen["figures"].values():
            assert "NPUs" in figure["pointed"]
            assert seen["palette"]["green"] in figure["colours"], "the best plan"


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 20)), max_size=30))
def test_nothing_off_the_front_beats_it(points: list[tuple[int, int]]) -> None:
    options = [given_option(npus, float(rate)) for npus, rate in points]
    front = pareto_front(options)
    for one in options:
        assert any(
            kept.candidate.npus <= one.candidate.npus and kept.verdict.goodput_per_s >= one.verdict.goodput_per_s
            for kept in front
        )


def given_option(npus: int, goodput_per_s: float) -> Option:
    """A plan of one prefill instance that costs and gives this."""
    shape = Shape(npus, 1)
    verdict = PlanVerdict(1, 1, 1, goodput_per_s, 0, 0, 0, 0, 0, 0, 0, "")
    return Option(Candidate(shape, 1, Shape(0, 1), 0), verdict, True, 1, "")
