"""Concurrency limits with several keys: sequences beyond the pools' capacity wait at the gateway."""

from typing import Any

import pytest
from msgspec.structs import replace

from serving.errors import LedgerError
from serving.gateway.core import events as e
from serving.gateway.core.concurrency import ConcurrencyLedger, PoolSlots
from serving.gateway.core.gateway_admission import AdmissionLimits, QueuedRequest
from serving.ids import ReplicaId
from serving.values.orders import Add
from tests.gateway.core.bench import IDLE, GatewayBench, ended, job

SHARED = AdmissionLimits(512, 1_000_000, 256, shared=True)
POOLS = PoolSlots(64, 1024, 512, 100_000, 100_000, apart=False)


def status(sequences: int = 64, step_tokens: int = 512, **changes: Any) -> Any:
    """Status of an instance that reports its concurrency."""
    told = replace(IDLE, max_sequences=sequences, max_step_tokens=step_tokens, blocks_free=10_000)
    return replace(told, **changes)


def bench(*pools: str, limits: AdmissionLimits = SHARED, **changes: Any) -> GatewayBench:
    """One instance per pool, with concurrency limits."""
    made, told = GatewayBench(*pools, limits=limits), status(**changes)
    for pool in pools or ("prefill", "decode"):
        made.up(pool, kv_blocks=told.blocks_free, status=told)
    return made


def flood(made: GatewayBench, key: str, requests: int, **fields: Any) -> list[int]:
    return [made.submit(replace(job(**fields), key=key)) for _ in range(requests)]


def work_off(made: GatewayBench, replica: ReplicaId) -> None:
    """Complete every prompt that was sent to it, with its first token."""
    for order in list(made.sent[replica]):
        if isinstance(order, Add) and order.spec.sequence_id.rpartition("@")[0] in made.core.choices:
            made.say(replica, replace(ended(order, 0, 7), finish_reason=None))


@pytest.mark.parametrize(
    ("what", "sent"),
    [
        ("all seats but for one in ten of its own", {"a": 59}),
        ("gateways share", {"a": 29, "gateways": 2}),
        ("choices need seats each", {"a": 14, "sequences": 4}),
        ("prompts of two steps", {"a": 16, "prompt": 64}),
        ("a prompt longer than a step counts as one", {"a": 2, "prompt": 4000}),
        (
            "room for KV, what was sent since the last report counted twice",
            {"a": 12, "blocks_free": 60, "max_tokens": 20},
        ),
        ("one key has all that is configured", {"a": 200, "shared": False}),
        ("instances that do not tell", {"a": 200, "slots": 0}),
    ],
)
def test_a_flood_gets_what_the_instances_can_run(what: str, sent: dict[str, Any]) -> None:
    told = {name: sent[name] for name in ("gateways", "blocks_free") if name in sent}
    limits = replace(SHARED, shared=sent.get("shared", True), max_running_sequences=200)
    made = bench("aggregated", limits=limits, sequences=sent.get("slots", 64), **told)
    fields = {"sequences": sent.get("sequences", 1), "max_tokens": sent.get("max_tokens", 4)}
    flood(made, "a", 220, prompt=(5,) * sent.get("prompt", 1), **fields)
    assert len(made.sent[ReplicaId("aggregated#0")]) == sent["a"] * fields["sequences"], what


@pytest.mark.parametrize("pools", [("aggregated",), ("prefill", "decode")])
@pytest.mark.parametrize("fields", [{}, {"sequences": 4}, {"prompt": (5,) * 2000}])
def test_another_key_starts_at_once_beside_a_flood(pools: tuple[str, ...], fields: dict[str, Any]) -> None:
    made = bench(*pools)
    flood(made, "a", 400, **fields)
    at, before = ReplicaId(f"{pools[0]}#0"), made.core.running
    (number,) = flood(made, "b", 1)
    assert made.core.running == before + 1
    (last,) = [order for order in made.sent[at] if f"g-{number}/" in str(order)]
    assert isinstance(last, Add)
    flood(made, "a", 1)
    assert made.core.running == before + 1, "whose seats these are not has to wait"


def test_whoever_ends_makes_room_and_keys_take_turns() -> None:
    made = bench("aggregated", sequences=8)
    flood(made, "a", 20)
    flood(made, "b", 20)
    at = ReplicaId("aggregated#0")
    for place in range(40):
        made.say(at, ended(made.sent[at][place], 0, 7))
        assert made.counts()[2] <= 8
    keys = [
        "a" if int(str(order.spec.sequence_id)[2:].partition("/")[0]) <= 20 else "b"
        for order in made.sent[at]
        if isinstance(order, Add)
    ]
    assert keys[:8] == [*"aaaaaaab"], "the flood leaves one"
    assert abs(keys[8:28].count("a") - 10) <= 1
    assert len(made.core.room) == 0


def test_a_computed_prompt_lets_the_next_one_in() -> None:
    made = bench("aggregated")
    at = ReplicaId("aggregated#0")
    flood(made, "a", 10, prompt=(5,) * 2000)
    assert len(made.sent[at]) == 2
    work_off(made, at)
    assert len(made.sent[at]) == 4


def test_sequences_that_wait_for_blocks_lower_the_seats_until_they_have_some() -> None:
    made = bench("aggregated")
    at = ReplicaId("aggregated#0")
    made.tell(e.InstanceStatus(at, status(running=5, waiting=7, blocks_free=100)))
    flood(made, "a", 5)
    assert len(made.sent[at]) == 1, "nothing of its own runs: it may"
    made.tell(e.InstanceStatus(at, status(running=12)))
    made.look_at(made.now + 0.2)
    assert len(made.sent[at]) == 5


def test_one_request_wakes_a_pool_without_seats() -> None:
    made = GatewayBench(limits=SHARED)
    made.up("prefill", kv_blocks=10_000, status=status(1))
    flood(made, "a", 3)
    assert len(made.sent[ReplicaId("prefill#0")]) == 1
    assert made.core.starved(made.now) is False
    assert made.core.waiting(made.now)[0] == 2


def test_as_many_as_have_their_prompts_computed_in_the_mean_are_let_in_beyond_the_seats() -> None:
    ledger, apart = ConcurrencyLedger(), replace(POOLS, apart=True)
    for number in range(20):
        ledger.start(f"s{number}", "a", 100, 50, 0.0)
    ledger.update(apart, 20, 0.5)
    assert ledger.most == 64, "a burst is none"
    ledger.update(apart, 20, 100.0)
    assert ledger.most == 64 + 19
    ledger.update(POOLS, 20, 100.0)
    assert ledger.most == 64, "who computes its own prompts has a seat meanwhile"
    for number in range(20):
        ledger.computed(f"s{number}", 0, 100.0)
    ledger.update(apart, 20, 200.0)
    assert ledger.most == 64
    for number in range(20):
        ledger.placed(f"s{number}")
        ledger.ended(f"s{number}", 200.0)
        ledger.check()


def test_cached_prompts_are_no_work() -> None:
    ledger = ConcurrencyLedger()
    one = QueuedRequest(1, 1, 500, 50, 100.0, "a")
    for warm in (False, True):
        for number in range(100 if warm else 0):
            ledger.start(f"w{number}", "b", 500, 50, 0.0)
            ledger.computed(f"w{number}", 490, 0.1)
            ledger.ended(f"w{number}", 1.0)
        for running in range(10):
            ledger.update(POOLS, running, 1.0)
            assert ledger.held(one) is (running > 4 and not warm)
            ledger.start(f"{warm}{running}", "a", 500, 50, 0.0)
        for running in range(10):
            ledger.ended(f"{warm}{running}", 1.0)


def test_a_ledger_that_does_not_balance_is_found() -> None:
    ledger = ConcurrencyLedger()
    ledger.start("s", "a", 10, 5, 0.0)
    with pytest.raises(LedgerError, match="already has a slot"):
        ledger.start("s", "a", 10, 5, 0.0)
    for name, value, told in (("_work", 3, "in flight"), ("_own", {}, "in use"), ("_computing", {}, "prompts")):
        kept = getattr(ledger, name)
        setattr(ledger, name, value)
        with pytest.raises(LedgerError, match=told):
            ledger.check()
        setattr(ledger, name, kept)
    ledger.check()
    assert ledger.of("a") == 1
