"""Tool pauses: the histogram's error and decay, the decision, and the bounds of what is remembered."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.gateway.core import pause_times as core
from serving.gateway.core.kv_hints import ClientHints, HintLimits, SessionName
from serving.gateway.core.pause_histogram import GROWTH, HALF_LIFE, LEAST_S, LONGEST_S, PauseHistogram
from serving.gateway.core.pause_times import OTHER, SETTLE_S, PausePlan, PauseTimes, pause_claim, pause_plan
from serving.values.kv_hints import ClaimKind, ClaimSpan, HintVerb, SequenceClaim

LIMITS = HintLimits(max_ttl_s=600.0, tiered=True)
ONE = SessionName("s")
PAUSES = st.floats(0, LONGEST_S)


def decayed_quantile(pauses: list[float], share: float) -> float:
    """The quantile itself, with weights as the histogram's."""
    weights = [0.5 ** ((len(pauses) - 1 - index) / HALF_LIFE) for index in range(len(pauses))]
    below, total = 0.0, sum(weights)
    for pause, weight in sorted(zip(pauses, weights, strict=True)):
        below += weight
        if below >= share * total * (1 - 1e-9):
            return pause
    raise AssertionError


@given(st.lists(PAUSES, min_size=1, max_size=300), st.floats(0.01, 1))
def test_a_quantile_is_too_high_by_less_than_a_bucket(pauses: list[float], share: float) -> None:
    histogram = PauseHistogram()
    for pause in pauses:
        histogram.observe(pause)
    exact = decayed_quantile(pauses, share)
    assert exact <= histogram.quantile(share) <= max(LEAST_S, GROWTH * exact) * (1 + 1e-9)


def test_older_pauses_count_less() -> None:
    histogram = PauseHistogram()
    for pause in [300.0] * 1000 + [3.0] * (HALF_LIFE - 5):
        histogram.observe(pause)
    assert histogram.quantile(0.5) >= 300
    for _ in range(10):
        histogram.observe(3.0)
    assert histogram.quantile(0.5) < 4
    for _ in range(10 * HALF_LIFE):
        histogram.observe(3.0)
    assert histogram.quantile(0.95) < 4, "nothing is left of the former"
    assert histogram.total == pytest.approx(1 / (1 - 0.5 ** (1 / HALF_LIFE)), rel=1e-3)


@pytest.mark.parametrize("pause", [-1.0, LONGEST_S + 1, inf, float("nan")])
def test_what_is_no_pause_is_not_counted(pause: float) -> None:
    histogram = PauseHistogram()
    histogram.observe(pause)
    assert (histogram.total, histogram.quantile(0.5)) == (0, 0)


@pytest.mark.parametrize(
    ("p50", "p95", "limits", "plan"),
    [
        (1, 2, LIMITS, PausePlan(10.0)),
        (8, 70, LIMITS, PausePlan(70.0)),
        (20, 5000, LIMITS, PausePlan(600.0)),
        (21, 70, LIMITS, PausePlan(70.0, 0.8 * 21)),
        (500, 5000, LIMITS, PausePlan(600.0, 400.0)),
        (500, 5000, HintLimits(max_ttl_s=600.0), PausePlan(600.0)),
        (1, 2, HintLimits(max_ttl_s=5.0), PausePlan(5.0)),
    ],
)
def test_decisions(p50: float, p95: float, limits: HintLimits, plan: PausePlan) -> None:
    assert pause_plan(p50, p95, limits) == plan


def learned(pause_s: float, *tools: str, limits: HintLimits = LIMITS, times: int = 20, acts: bool = True) -> PauseTimes:
    """A gateway that has seen pauses of these tools, from 0 s on; nothing is pending."""
    pauses, now = PauseTimes(limits, acts=acts), 0.0
    for _ in range(times):
        pauses.on_answer("n", ONE, tools or ("bash",), now)
        now += pause_s
        assert pauses.on_request("n", ONE, now, offers_tools=True) is not None
    assert (pauses.open, pauses.next_due()) == (0, inf)
    return pauses


def sent(pauses: PauseTimes, now: float) -> list[tuple[HintVerb, float]]:
    return [(one.verb, one.ttl_s) for _, actions in pauses.on_due(now) for one in actions]


def test_a_long_pause_is_spent_on_ssd() -> None:
    pauses = learned(60.0)
    pauses.on_answer("n", ONE, ["bash"], 5000.0)
    assert pauses.next_due() == 5000 + SETTLE_S
    assert sent(pauses, 5000) == []
    (retain, ttl_s), demote = sent(pauses, 5000 + SETTLE_S)
    assert (retain, demote) == (HintVerb.RETAIN, (HintVerb.DEMOTE, 0))
    assert 60 <= ttl_s < 60 * GROWTH
    assert 0.8 * 60 <= pauses.next_due() - 5000 < 0.8 * 60 * GROWTH
    assert sent(pauses, 5100) == [(HintVerb.PREFETCH, 0)]
    assert (pauses.next_due(), pauses.open) == (inf, 1)


def test_a_session_that_continues_early_sends_nothing_more() -> None:
    pauses = learned(60.0)
    pauses.on_answer("n", ONE, ["bash"], 5000.0)
    assert pauses.on_request("n", ONE, 5000.25, offers_tools=False) is None, "a side request"
    assert pauses.on_request("n", ONE, 5000.5, offers_tools=True) == core.ObservedPause(("bash",), 0.5)
    assert (pauses.next_due(), sent(pauses, 6000)) == (inf, [])


def test_what_the_client_says_itself_takes_precedence() -> None:
    pauses = learned(60.0)
    pauses.on_answer("n", ONE, ["bash"], 0.0, ClientHints.ACTIONS)
    assert pauses.next_due() == inf
    pauses.on_answer("n", ONE, ["bash"], 0.0, ClientHints.CLAIM)
    assert sent(pauses, 100.0) == [(HintVerb.PREFETCH, 0)]
    pauses.on_answer("n", ONE, ["bash"], 0.0)
    pauses.on_hint("n", "other")
    assert pauses.next_due() == SETTLE_S
    pauses.on_hint("n", "s")
    assert (pauses.next_due(), pauses.open) == (inf, 1), "the pause is still observed"


def test_little_known_tools_are_treated_like_the_tenants_others_and_the_slowest_decides() -> None:
    assert learned(60.0, times=3).plan_of("n", ["bash"]) is None
    pauses = learned(60.0)
    assert pauses.plan_of("n", ["new"]) == pauses.plan_of("n", ["bash"])
    assert pauses.plan_of("other", ["bash"]) is None, "tenants learn nothing of each other"
    for _ in range(200):
        pauses.on_answer("n", ONE, ["ls"], 0.0)
        pauses.on_request("n", ONE, 1.0, offers_tools=True)
    assert pauses.plan_of("n", ["ls"]) == PausePlan(10.0)
    assert pauses.plan_of("n", ["ls", "bash"]) == pauses.plan_of("n", ["bash"])


def test_answers_without_calls_and_observers_send_nothing() -> None:
    pauses = learned(60.0)
    pauses.on_answer("n", ONE, [], 0.0)
    assert pauses.open == 0
    only_observed = learned(60.0, acts=False)
    only_observed.on_answer("n", ONE, ["bash"], 0.0)
    assert (only_observed.open, only_observed.next_due()) == (1, inf)


@pytest.mark.parametrize("jump", [-1e9, -10.0, 1e9])
def test_a_clock_that_jumps_is_no_pause(jump: float) -> None:
    pauses = learned(60.0)
    before = pauses.plan_of("n", ["bash"])
    pauses.on_answer("n", ONE, ["bash"], 2e9)
    sent(pauses, 2e9 + jump)
    assert pauses.on_request("n", ONE, 2e9 + jump, offers_tools=True) is None
    assert (pauses.plan_of("n", ["bash"]), pauses.next_due(), pauses.open) == (before, inf, 0)


def test_all_that_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "MOST_OPEN", 8)
    monkeypatch.setattr(core, "MOST_NAMESPACES", 3)
    pauses = learned(60.0)
    for number in range(1000):
        pauses.on_answer("n", SessionName(f"s{number}"), [f"tool{number}"], float(number))
        assert pauses.open <= 8
    names = {pauses.on_request("n", SessionName(f"s{number}"), 1000.0, offers_tools=True) for number in range(1000)}
    assert {one.tools for one in names if one is not None} == {(OTHER,)}
    for number in range(1000):
        pauses.on_answer("n", ONE, ["bash"], float(number))
        pauses.on_request("n", ONE, float(number), offers_tools=True)
    assert len(pauses._due) <= 100
    for number in range(5):
        pauses.on_answer(f"n{number}", ONE, ["bash"], 0.0)
    assert pauses.open == 3


def test_few_pauses_at_once() -> None:
    pauses = learned(60.0)
    for number in range(100):
        pauses.on_answer("n", SessionName(f"s{number}"), ["bash"], 0.0)
    assert [len(pauses.on_due(1.0)) for _ in range(3)] == [64, 36, 0]


def test_the_claim_by_which_a_session_is_found() -> None:
    span = ClaimSpan(ClaimKind.RETAIN, 10.0)
    assert pause_claim(SessionName("s", "b"), LIMITS) == SequenceClaim("s", "b", (span,))
