"""From the fields of requests to claims and actions, and back to outcomes."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.config import KvCacheConfig, ModelConfig, NamespaceConfig, ServeConfig
from serving.errors import InvalidRequestError
from serving.gateway.core.from_config import hint_limits
from serving.gateway.core.kv_hints import (
    AskedAction,
    HintLimits,
    HintPlan,
    OrderHints,
    SessionName,
    plan_actions,
    sequence_claim,
)
from serving.gateway.core.recent_requests import RecentRequests
from serving.values.kv_hints import ClaimKind, ClaimSpan, HintAction, HintOutcome, HintStatus, HintVerb

LIMITS = HintLimits(max_ttl_s=600.0, block_tokens=16)
OWN = SessionName("mine", "agent")


def plan(
    kind: str, /, own: SessionName | None = None, limits: HintLimits = LIMITS, version: str = "1.0", **payload: Any
) -> HintPlan:
    asked = [AskedAction("actions[0]", "a", kind, version, payload)]
    return plan_actions(asked, own, limits, 100)


def actions(planned: HintPlan) -> list[tuple[HintVerb, str | None, float, float]]:
    return [
        (one.action.verb, one.action.branch, one.action.ttl_s, one.delay_s) for one in (*planned.now, *planned.at_end)
    ]


@pytest.mark.parametrize(
    ("kind", "payload", "expected"),
    [
        ("kv.retain", {"ttl_s": 60}, [(HintVerb.RETAIN, None, 60, 0)]),
        ("KV.Retain", {"ttl_s": 1000, "branch": "b"}, [(HintVerb.RETAIN, "b", 600, 0)]),
        ("retain", {}, [(HintVerb.RETAIN, None, 300, 0)]),
        ("kv.touch", {}, [(HintVerb.TOUCH, None, 0, 0)]),
        ("kv.release", {"branch": ""}, [(HintVerb.RELEASE, "", 0, 0)]),
        ("kv.demote", {}, [(HintVerb.DEMOTE, None, 0, 0)]),
        ("kv.prefetch", {}, [(HintVerb.PREFETCH, None, 0, 0)]),
        ("kv.branch_ended", {"branch": "b"}, [(HintVerb.RELEASE, "b", 0, 0)]),
        ("kv.tool_wait", {"expected_s": 3, "tool": "ls"}, [(HintVerb.TOUCH, "", 0, 0)]),
        (
            "kv.tool_wait",
            {"expected_s": 50},
            [(HintVerb.TOUCH, "", 0, 0), (HintVerb.DEMOTE, "", 0, 0), (HintVerb.PREFETCH, "", 0, 40)],
        ),
        ("kv.resume_expected", {"in_s": 400}, [(HintVerb.RETAIN, "", 600, 0), (HintVerb.PREFETCH, "", 0, 320)]),
        ("kv.resume_expected", {"in_s": 0}, [(HintVerb.PREFETCH, "", 0, 0)]),
        ("kv.resume_expected", {"in_s": 100}, [(HintVerb.TOUCH, "", 0, 0), (HintVerb.PREFETCH, "", 0, 80)]),
    ],
)
def test_actions_and_signals_of_a_named_session(kind: str, payload: dict[str, Any], expected: list[Any]) -> None:
    planned = plan(kind, session_id="s", **payload)
    assert actions(planned) == expected
    assert not planned.at_end
    assert {one.action.session for one in planned.now} == {"s"}


def test_what_a_request_says_about_its_own_session() -> None:
    assert plan("kv.retain", OWN, ttl_s=60).spans == [ClaimSpan(ClaimKind.RETAIN, 60)]
    part = plan("kv.retain", OWN, tokens=50)
    assert part.spans == [ClaimSpan(ClaimKind.RETAIN, 300, 48)]
    assert [(one.outcome, one.tokens, one.of_tokens) for one in part.known.values()] == [(HintStatus.DEFERRED, 48, 50)]
    assert plan("kv.retain", OWN, tokens=15).known["a"].reason == "fewer tokens than a block of 16"
    assert plan("kv.retain", OWN, ttl_s=700).known["a"].outcome is HintStatus.CLIPPED
    for kind in ("kv.release", "kv.demote", "kv.branch_ended", "kv.tool_wait"):
        payload: dict[str, Any] = {"expected_s": 1} if kind == "kv.tool_wait" else {}
        ended = plan(kind, OWN, **payload)
        assert (ended.now, len(ended.at_end)) == ([], 1), kind
        assert ended.at_end[0].action.branch == "agent"
    assert plan("kv.touch", OWN).now
    assert not plan("kv.release", OWN, branch="other").at_end, "another branch has ended already"


@pytest.mark.parametrize(
    ("kind", "payload", "words"),
    [
        ("kv.teleport", {"session_id": "s"}, "unknown action"),
        ("kv.pin", {"session_id": "s"}, "pins are off"),
        ("kv.retain", {}, "no session"),
        ("kv.retain", {"session_id": "s", "hashes": []}, "unknown key"),
        ("kv.retain", {"session_id": "s", "tokens": 16}, "own prompt only"),
    ],
)
def test_rejected(kind: str, payload: dict[str, Any], words: str) -> None:
    planned = plan(kind, **payload)
    assert not actions(planned)
    (outcome,) = planned.outcomes({}, 16)
    assert (outcome.outcome, words in outcome.reason) == (HintStatus.REJECTED, True)


def test_versions_and_pins() -> None:
    assert "version" in plan("kv.touch", version="2.0", session_id="s").known["a"].reason
    pinned = plan("kv.pin", limits=HintLimits(pins=True), session_id="s")
    assert pinned.now[0].action.verb is HintVerb.PIN


@pytest.mark.parametrize("ttl", [0, -1, 1e9, "5 m", float("nan"), float("inf"), True, [], 86_401])
def test_times_that_are_none(ttl: object) -> None:
    for kind, key in (("kv.retain", "ttl_s"), ("kv.resume_expected", "in_s")):
        if (kind, ttl) == ("kv.resume_expected", 0):
            continue
        given: dict[str, Any] = {key: ttl}
        with pytest.raises(InvalidRequestError) as refused:
            plan(kind, session_id="s", **given)
        assert refused.value.param == f"actions[0].payload.{key}"


@pytest.mark.parametrize("name", ["", "x" * 257, "a\0b", "x" * 10_000_000, "\ud800", 7, ["s"]])
def test_sessions_that_are_none(name: object) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        plan("kv.touch", session_id=name)
    assert refused.value.param == "actions[0].payload.session_id"
    assert len(str(refused.value)) < 200


def test_too_many_and_duplicates() -> None:
    def some(count: int, same: bool = False) -> list[AskedAction]:
        names = ["a" if same else f"a{i}" for i in range(count)]
        return [AskedAction(f"actions[{i}]", n, "kv.touch", "1", {"session_id": "s"}) for i, n in enumerate(names)]

    assert len(plan_actions(some(64), None, LIMITS).now) == 64
    with pytest.raises(InvalidRequestError) as refused:
        plan_actions(some(65), None, LIMITS)
    assert refused.value.param == "actions"
    with pytest.raises(InvalidRequestError) as refused:
        plan_actions(some(2, same=True), None, LIMITS)
    assert refused.value.param == "actions[1].action_id"


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.lists(st.none(), max_size=1)


@given(
    st.sampled_from(["kv.retain", "kv.pin", "kv.touch", "kv.tool_wait", "kv.resume_expected", "kv.branch_ended", "x"]),
    st.dictionaries(
        st.sampled_from(["session_id", "branch", "ttl_s", "tokens", "expected_s", "in_s", "tool", "x"]), VALUES
    ),
    st.booleans(),
)
def test_any_payload_is_planned_rejected_or_refused_with_its_place(
    kind: str, payload: dict[str, Any], own: bool
) -> None:
    try:
        planned = plan(kind, OWN if own else None, HintLimits(600, pins=True), **payload)
    except InvalidRequestError as refused:
        place = refused.param
    else:
        place = None
        _check_within_limits(planned)
    assert place is None or place.startswith("actions[0].payload.")


def _check_within_limits(planned: HintPlan) -> None:
    assert planned.now or planned.at_end or planned.spans or planned.known
    assert all(0 < span.ttl_s <= 600 for span in planned.spans)
    assert all(one.action.ttl_s <= 600 for one in (*planned.now, *planned.at_end))


def test_spans_of_a_claim_are_limited_and_the_longest_lived_come_first() -> None:
    spans = [ClaimSpan(ClaimKind.RETAIN, 300, 32), ClaimSpan(ClaimKind.RETAIN, 86_400, 16)]
    claim = sequence_claim(OWN, spans, LIMITS)
    assert claim.spans == (ClaimSpan(ClaimKind.RETAIN, 600, 16), ClaimSpan(ClaimKind.RETAIN, 300, 32))
    assert (claim.session, claim.branch) == ("mine", "agent")


def test_tokens_written_are_those_not_cached_before() -> None:
    hints = OrderHints(ends=(("1h", 64), ("5m", 160)))
    assert hints.written(0) == {"1h": 64, "5m": 96}
    assert hints.written(80) == {"1h": 0, "5m": 80}
    assert hints.written(200) == {"1h": 0, "5m": 0}
    assert OrderHints(ends=(("1h", 160), ("5m", 64))).written(0) == {"1h": 160, "5m": 0}


def test_recent_requests_are_bounded_and_each_tenant_sees_its_own() -> None:
    recent = RecentRequests(most=4, tenants=2)
    recent.note("a", ["1", "m1"], OWN)
    assert (recent.find("a", "m1"), recent.find("b", "m1")) == (OWN, None)
    for number in range(2, 5):
        recent.note("a", [str(number)], SessionName(f"s{number}"))
    assert [recent.find("a", name) is not None for name in ("1", "m1", "2", "4")] == [False, True, True, True]
    recent.note("b", ["1"], OWN)
    recent.note("a", ["9"], OWN)
    recent.note("c", ["1"], OWN)
    assert recent.find("b", "1") is None, "the tenant that was silent longest is forgotten"
    assert recent.find("a", "9") == OWN


def test_an_accepted_action_of_a_shortened_time_is_clipped() -> None:
    planned = plan("kv.retain", session_id="s", ttl_s=1000)
    (outcome,) = planned.outcomes({"a": HintOutcome(HintStatus.ACCEPTED, 2, 3)}, 16)
    assert (outcome.outcome, outcome.tokens, outcome.of_tokens) == (HintStatus.CLIPPED, 32, 48)
    assert "600" in outcome.reason
    (outcome,) = planned.outcomes({"a": HintOutcome(HintStatus.MISSING)}, 16)
    assert outcome.outcome is HintStatus.MISSING
    assert HintAction(HintVerb.RETAIN, "s", ttl_s=600.0) == planned.now[0].action


def test_limits_follow_the_configuration() -> None:
    tenants = (
        NamespaceConfig("short", max_ttl_s=60.0),
        NamespaceConfig("long", max_ttl_s=1e6),
        NamespaceConfig("usual"),
    )
    kvcache = KvCacheConfig(max_ttl_s=600.0, pin_share=0.1)
    limits = hint_limits(ServeConfig(ModelConfig(path=Path("m")), kvcache=kvcache, namespaces=tenants))
    assert [limits.of(name).max_ttl_s for name in ("short", "long", "usual", "default")] == [60.0, 600.0, 600.0, 600.0]
    assert all(limits.of(name).pins for name in ("short", "usual"))
