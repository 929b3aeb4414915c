"""Capacity of instances is derived from differences of their counters."""

from typing import Any

import pytest

from serving.scaling.core.capacity import START_S, TPOT_SPREAD, Abilities, PromptRate
from serving.scaling.core.cluster_snapshot import ClusterSnapshot, SeenDeployment, SeenMember
from tests.scaling.live.case import SERVING, STARTING, deployment, member, replica


def snapshot(at: float, *members: SeenMember, **deployments: SeenDeployment) -> ClusterSnapshot:
    return ClusterSnapshot(at, deployments, (), {one.name.partition("#")[2]: one for one in members})


def prefilled(tokens: int, busy_s: float, incarnation: str = "1") -> SeenMember:
    """After work in steps of 100 tokens."""
    counted = {
        "prompt_tokens_total": tokens,
        "busy_s": busy_s,
        "generated_tokens_total": 0,
        "steps_total": tokens // 100,
    }
    return member("p1", "prefill", incarnation, **counted)


def decoded(tokens: int, busy_s: float, running: int) -> SeenMember:
    counted: dict[str, Any] = {"generated_tokens_total": tokens, "steps_total": tokens // 8, "running": running}
    return member("d1", "decode", busy_s=busy_s, **counted)


def test_prompt_tokens_per_busy_second() -> None:
    abilities = Abilities()
    assert abilities.tokens_per_s("prefill", 100) == 0.0
    abilities.observe(snapshot(0, prefilled(0, 0.0)))
    assert abilities.tokens_per_s("prefill", 100) == 0.0, "one look is no difference"
    abilities.observe(snapshot(1, prefilled(1000, 0.5)))
    abilities.observe(snapshot(2, prefilled(1000, 0.5)))
    assert abilities.tokens_per_s("prefill", 100) == pytest.approx(2000)


def test_a_restarted_instance_is_no_difference() -> None:
    abilities = Abilities()
    abilities.observe(snapshot(0, prefilled(5000, 9.0)))
    abilities.observe(snapshot(1, prefilled(100, 0.1, incarnation="2")))
    assert abilities.tokens_per_s("prefill", 100) == 0.0
    abilities.observe(snapshot(2, prefilled(400, 0.2, incarnation="2")))
    assert abilities.tokens_per_s("prefill", 100) == pytest.approx(3000)


def test_short_work_is_saved_up() -> None:
    abilities = Abilities()
    for i in range(5):
        abilities.observe(snapshot(i, prefilled(100 * i, 0.006 * i)))
    assert abilities.tokens_per_s("prefill", 100) == pytest.approx(100 / 0.006)


def test_recent_work_counts_most() -> None:
    rate = PromptRate()
    rate.observe(1000, 1.0, 1)
    for _ in range(300):
        rate.observe(4000, 4.0, 4)
    for _ in range(300):
        rate.observe(4000, 1.0, 4)
    assert rate.tokens_per_s(1000) == pytest.approx(4000, rel=0.03)


def test_small_steps_say_nothing_against_what_full_ones_do() -> None:
    """A step takes 10 ms and 10 us a token; an aggregated pool was taken for full by what it did while little came."""
    rate = PromptRate()

    def work(tokens: int, steps: int) -> None:
        rate.observe(tokens * steps, steps * (0.01 + 1e-5 * tokens), steps)

    def told(tokens: int) -> float:
        return tokens / (0.01 + 1e-5 * tokens)

    for _ in range(60):
        work(100, 50)
    assert rate.tokens_per_s(8000) == pytest.approx(told(100)), "all steps were alike"
    for size in (50, 150) * 30:
        work(size, 50)
    assert rate.tokens_per_s(8000) == pytest.approx(told(4 * 100), rel=0.1), "a line is not drawn without end"
    work(8000, 20)
    for _ in range(600):
        work(100, 50)
    assert rate.tokens_per_s(8000) == pytest.approx(told(8000))
    assert rate.tokens_per_s(4000) == pytest.approx(told(4000))


def test_nothing_measured_means_as_configured() -> None:
    assert Abilities().most_sequences("decode", 0.05, 64) == 64.0


def test_decode_work_is_seen_in_counters() -> None:
    abilities = Abilities()
    for at, tokens, busy_s in ((0, 0, 0.0), (50, 20_000, 50.0), (100, 40_000, 100.0)):  # 8 at once, 20 ms each
        abilities.observe(snapshot(at, decoded(tokens, busy_s, running=8)))
    assert abilities.most_sequences("decode", 0.025, 64) == 64.0
    assert abilities.most_sequences("decode", 0.015, 64) == pytest.approx(6 / TPOT_SPREAD)


def test_starts_are_timed_from_the_wish_to_the_first_look_that_sees_them_serve() -> None:
    abilities = Abilities()
    assert abilities.start_s == START_S
    first = replica("d1", started_at=0.0)
    abilities.observe(snapshot(5, decode=deployment(1, replica("d1", None, STARTING, 1.0))))
    abilities.observe(snapshot(9, decode=deployment(1, first)))
    assert abilities.start_s == START_S, "the system's own start is not like later ones"
    abilities.observe(snapshot(20, decode=deployment(2, first, replica("d2", None, STARTING, 19.5))))
    assert abilities.start_s == START_S
    abilities.observe(snapshot(59.5, decode=deployment(2, first, replica("d2", "a", STARTING, 19.5))))
    assert abilities.start_s == 40.0, "this one takes longer at least"
    abilities = Abilities()
    abilities.observe(snapshot(9, decode=deployment(1, first)))
    abilities.observe(snapshot(20, decode=deployment(2, first, replica("d2", None, STARTING, 19.5))))
    abilities.observe(snapshot(23.5, decode=deployment(2, first, replica("d2", phase=SERVING))))
    assert abilities.start_s == 4.0


def test_waiting_for_hardware_is_no_part_of_a_start() -> None:
    """A replica that waited 20 minutes for a node made every later start look as long."""
    abilities = Abilities()
    first = replica("d1", started_at=0.0)
    abilities.observe(snapshot(9, decode=deployment(1, first)))
    for at in range(20, 1220):
        abilities.observe(snapshot(at, decode=deployment(2, first, replica("d2", None, STARTING, 19.5))))
    for at in range(1220, 1225):
        abilities.observe(snapshot(at, decode=deployment(2, first, replica("d2", "b", STARTING, 19.5))))
    abilities.observe(snapshot(1225, decode=deployment(2, first, replica("d2", "b", SERVING, 19.5))))
    assert 5.0 <= abilities.start_s <= 9.0
