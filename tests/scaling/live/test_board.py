"""The only place that scales: refusals, holds, records, and detected changes."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from serving.cluster.gcs_store import GcsStore
from serving.cluster.kept_values import KeptValues
from serving.scaling.core.decision import PoolTarget, ScaleKind
from serving.scaling.live.board import ScalingBoard
from serving.scaling.live.cluster_port import ClusterSilentError
from serving.values.scaling import HoldPool, ReadDecisions, ReadPools, ReleasePool, ScaleAnswer, ScalePool, ScaleRefusal
from serving.values.signals import Traffic
from serving.values.traffic import GatewayReport
from tests.cluster.gcs_fake import FakeGcs
from tests.scaling.live.case import DRAINING, EMPTY, FakeCluster, board_of, config, deployment, member, replica


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def rows(board: ScalingBoard) -> list[tuple[Any, ...]]:
    """The ledger, oldest first, without times and reasons."""
    entries = board.decisions(ReadDecisions(limit=100))
    return [(e["pool"], e["before"], e["target"], e["kind"], e["by"]) for e in reversed(entries)]


def wanted(pool: str, before: int, target: int, kind: ScaleKind = ScaleKind.BURST) -> PoolTarget:
    return PoolTarget(pool, before, target, kind, "because")


def pool_row(board: ScalingBoard, pool: str) -> dict[str, Any]:
    return next(row for row in board.state()["pools"] if row["pool"] == pool)


# ---- by hand ---------------------------------------------------------------------------------------------------------


def test_a_target_by_hand_holds_its_pool(cluster: FakeCluster) -> None:
    board = board_of(cluster, manual_hold_s=600.0)
    answer = asyncio.run(board.answer(ScalePool("decode", 3, None, "cli")))
    assert answer == ScaleAnswer("decode", 1, 3, 3, 600.0, "decode: 1 -> 3; asked for by hand, held for 10 min")
    assert cluster.calls == [("decode", 3)]
    assert rows(board) == [("decode", 1, 3, "held", "cli")]
    asyncio.run(board.apply([wanted("decode", 3, 2), wanted("prefill", 1, 2)]))
    assert cluster.calls[1:] == [("prefill", 2)], "the held pool is left alone"
    cluster.now += 601
    asyncio.run(board.apply([wanted("decode", 3, 2)]))
    assert cluster.calls[2:] == [("decode", 2)]


def test_its_own_time_of_holding(cluster: FakeCluster) -> None:
    board = board_of(cluster)
    asyncio.run(board.answer(ScalePool("decode", 2, 30.0, "cli")))
    assert pool_row(board, "decode")["hold"] == {"left_s": 30.0, "by": "cli"}
    asyncio.run(board.answer(ScalePool("decode", 2, 0.0, "page")))
    assert pool_row(board, "decode")["hold"] is None
    assert cluster.calls == [("decode", 2)], "nothing to change the second time"


def test_without_a_policy_nothing_has_to_be_held(cluster: FakeCluster) -> None:
    board = board_of(cluster, policy="none")
    asyncio.run(board.answer(ScalePool("decode", 2, None, "rest")))
    assert pool_row(board, "decode")["hold"] is None
    assert board.state()["autoscaler"]["alive"] is False


def test_what_does_not_fit_is_refused_with_the_number_that_would(cluster: FakeCluster) -> None:
    board = board_of(cluster)
    refusal = asyncio.run(board.answer(ScalePool("decode", 4, None, "cli")))
    assert isinstance(refusal, ScaleRefusal)
    assert (refusal.kind, refusal.fits) == ("no_room", 3)
    assert refusal.message == (
        "4 replicas of decode do not fit, 3 would: "
        "an instance needs 4 NPUs whole on one node, at most 2 are free on any then"
    )
    assert cluster.calls == []
    assert rows(board) == []


def test_fewer_of_too_many_is_always_possible(cluster: FakeCluster) -> None:
    board = board_of(cluster)
    asyncio.run(board.answer(ScalePool("decode", 3, None, "cli")))
    cluster.sight = replace(cluster.sight, nodes=cluster.sight.nodes[:1])  # a node is lost
    assert isinstance(asyncio.run(board.answer(ScalePool("decode", 2, None, "cli"))), ScaleAnswer)


@pytest.mark.parametrize(
    ("pool", "replicas", "hold_s", "kind"),
    [
        ("nope", 1, None, "unknown_pool"),
        ("gateway", 1, None, "unknown_pool"),
        ("decode", -1, None, "invalid"),
        ("decode", 385, None, "invalid"),
        ("decode", 1, -1.0, "invalid"),
        ("decode", 1, float("nan"), "invalid"),
        ("decode", 1, 1e9, "invalid"),
    ],
)
def test_nonsense_is_refused(cluster: FakeCluster, pool: str, replicas: int, hold_s: float | None, kind: str) -> None:
    refusal = asyncio.run(board_of(cluster).answer(ScalePool(pool, replicas, hold_s, "page")))
    assert isinstance(refusal, ScaleRefusal)
    assert refusal.kind == kind


def test_a_pool_that_is_not_there_yet(cluster: FakeCluster) -> None:
    cluster.sight = replace(cluster.sight, deployments={})
    refusal = asyncio.run(board_of(cluster).answer(ScalePool("decode", 2, None, "cli")))
    assert isinstance(refusal, ScaleRefusal)
    assert "not deployed yet" in refusal.message


def test_rays_own_route_may_scale_what_is_no_pool(cluster: FakeCluster) -> None:
    cluster.sight = replace(cluster.sight, others={"gateway": deployment(1)})
    board = board_of(cluster)
    answer = asyncio.run(board.answer(ScalePool("gateway", 2, None, "rest")))
    assert isinstance(answer, ScaleAnswer)
    assert cluster.calls == [("gateway", 2)]
    assert isinstance(asyncio.run(board.answer(ScalePool("gateway", 2, None, "page"))), ScaleRefusal)


def test_hold_and_release(cluster: FakeCluster) -> None:
    board = board_of(cluster, manual_hold_s=600.0)
    held = asyncio.run(board.answer(HoldPool("prefill", None, "page")))
    assert held == ScaleAnswer("prefill", 1, 1, 6, 600.0, "prefill stays at 1: held for 10 min")
    released = asyncio.run(board.answer(ReleasePool("prefill", "page")))
    assert isinstance(released, ScaleAnswer)
    assert (released.hold_left_s, released.message) == (0.0, "prefill: released")
    again = asyncio.run(board.answer(HoldPool("prefill", 0.0, "page")))
    assert isinstance(again, ScaleAnswer)
    assert again.message == "prefill: was not held"
    assert [row[3] for row in rows(board)] == ["held", "held"], "what changes nothing is not written down"
    assert isinstance(asyncio.run(board.answer(HoldPool("nope", 1.0, "page"))), ScaleRefusal)


def test_questions_may_come_before_the_first_look(cluster: FakeCluster) -> None:
    board = ScalingBoard(config(), cluster, KeptValues(), cluster.clock)
    state: Any = asyncio.run(board.answer(ReadPools()))
    assert [row["target"] for row in state["pools"] if row["pool"] == "decode"] == [1]
    for pool in ("prefill", "decode"):
        asyncio.run(board.answer(HoldPool(pool, 9.0, "cli")))
    found: Any = asyncio.run(board.answer(ReadDecisions(after=1)))
    assert [entry["pool"] for entry in found] == ["decode"]


def test_when_serve_is_silent_nothing_changes(cluster: FakeCluster) -> None:
    board = board_of(cluster)
    cluster.silent = True
    with pytest.raises(ClusterSilentError):
        asyncio.run(board.answer(ScalePool("decode", 2, None, "cli")))
    cluster.silent = False
    asyncio.run(board.look())
    assert pool_row(board, "decode")["hold"] is None
    assert rows(board) == []


def test_what_serve_does_although_it_did_not_answer_was_not_set_past_the_board(cluster: FakeCluster) -> None:
    board = board_of(cluster)
    cluster.deaf = True
    with pytest.raises(ClusterSilentError):
        asyncio.run(board.apply([wanted("decode", 1, 2)]))
    cluster.deaf = False
    asyncio.run(board.look())
    assert rows(board) == [], "not done so far"
    cluster.set_past_the_board("decode", 2)
    asyncio.run(board.look())
    assert rows(board) == [("decode", 1, 2, "burst", "autoscaler")]
    assert pool_row(board, "decode")["hold"] is None
    cluster.set_past_the_board("decode", 1)
    asyncio.run(board.look())
    assert pool_row(board, "decode")["hold"]["by"] == "rest", "this was somebody else"


def test_a_person_whose_target_comes_late_gets_the_hold_that_was_asked_for(cluster: FakeCluster) -> None:
    board = board_of(cluster)
    cluster.deaf = True
    with pytest.raises(ClusterSilentError):
        asyncio.run(board.answer(ScalePool("decode", 2, 86400.0, "cli")))
    cluster.deaf = False
    cluster.set_past_the_board("decode", 2)
    asyncio.run(board.look())
    assert rows(board) == [("decode", 1, 2, "held", "cli")]
    assert pool_row(board, "decode")["hold"] == {"left_s": 86400.0, "by": "cli"}


def test_a_hold_waits_for_the_target_that_is_on_its_way(cluster: FakeCluster) -> None:
    """Otherwise it would report that the pool stays at 1 while its target is 2."""
    board = board_of(cluster)

    async def scene() -> ScaleAnswer | ScaleRefusal:
        await board.look()
        cluster.takes_s = 0.01
        growing = asyncio.create_task(board.apply([wanted("decode", 1, 2)]))
        await asyncio.sleep(0)
        answer = await board.answer(HoldPool("decode", 600.0, "cli"))
        await growing
        return answer

    answer = asyncio.run(scene())
    assert isinstance(answer, ScaleAnswer)
    assert answer.message == "decode stays at 2: held for 10 min"
    assert [row[:3] for row in rows(board)] == [("decode", 1, 2), ("decode", 2, 2)]


def test_gateways_that_die_starving_are_forgotten(cluster: FakeCluster) -> None:
    board = board_of(cluster)
    for number in range(100):
        cluster.now += 10.0
        board.report(GatewayReport(f"g{number}", Traffic(queued=1), 1, EMPTY, EMPTY, starved=True))
    assert board._starved == {"g99"}


# ---- past the board --------------------------------------------------------------------------------------------------


def test_a_target_set_past_the_board_becomes_a_hold(cluster: FakeCluster) -> None:
    board = board_of(cluster, manual_hold_s=600.0)
    cluster.set_past_the_board("decode", 2)
    asyncio.run(board.look())
    assert rows(board) == [("decode", 1, 2, "held", "rest")]
    assert pool_row(board, "decode")["hold"] == {"left_s": 600.0, "by": "rest"}
    asyncio.run(board.look())
    assert len(rows(board)) == 1, "noticed once"


def test_too_much_past_the_board_is_brought_down_to_what_fits(cluster: FakeCluster) -> None:
    board = board_of(cluster)
    cluster.set_past_the_board("decode", 20)
    asyncio.run(board.look())
    assert cluster.calls == [("decode", 3)]
    assert rows(board) == [("decode", 1, 20, "held", "rest"), ("decode", 20, 3, "fit", "rest")]
    asyncio.run(board.look())
    assert len(rows(board)) == 2


def test_nobody_wished_what_the_first_look_finds(cluster: FakeCluster) -> None:
    cluster.set_past_the_board("decode", 2)
    assert rows(board_of(cluster)) == []


# ---- the policy ------------------------------------------------------------------------------------------------------


def test_the_policy_makes_room_before_it_takes_it(cluster: FakeCluster) -> None:
    cluster.place("prefill", *(replica(f"p{i}", "a" if i < 2 else "b") for i in range(6)))
    cluster.set_past_the_board("prefill", 6)
    board = board_of(cluster)
    asyncio.run(board.apply([wanted("decode", 1, 2), wanted("prefill", 6, 4, ScaleKind.YIELD)]))
    assert cluster.calls == [("prefill", 4), ("decode", 2)]
    assert rows(board) == [("prefill", 6, 4, "yield", "autoscaler"), ("decode", 1, 2, "burst", "autoscaler")]


def test_the_policy_gets_no_more_than_fits(cluster: FakeCluster) -> None:
    board = board_of(cluster)
    asyncio.run(board.apply([wanted("decode", 1, 9)]))
    assert cluster.calls == [("decode", 3)]
    assert board.decisions(ReadDecisions(limit=1))[0]["reason"] == (
        "because; 9 wanted, 3 fit: an instance needs 4 NPUs whole on one node, at most 2 are free on any then"
    )
    asyncio.run(board.apply([wanted("decode", 3, 9)]))
    assert len(rows(board)) == 1, "asking again changes nothing"


def test_a_decision_upon_another_target_is_too_late(cluster: FakeCluster) -> None:
    board = board_of(cluster)
    asyncio.run(board.answer(ScalePool("decode", 2, 0.0, "cli")))
    asyncio.run(board.apply([wanted("decode", 1, 0), wanted("nope", 1, 2)]))
    assert cluster.calls == [("decode", 2)]


def test_signals_come_after_the_period_or_when_somebody_starves(cluster: FakeCluster) -> None:
    board = board_of(cluster)

    async def scene() -> None:
        waiting = asyncio.create_task(board.next_signals(60.0))
        await asyncio.sleep(0)
        told = board.report(GatewayReport("g", Traffic(queued=1), 1, EMPTY, EMPTY, starved=True))
        assert (told.targets, told.others) == ({"prefill": 1, "decode": 1, "kvcache": 1}, 0)
        signals = await asyncio.wait_for(waiting, 30.0)
        assert signals.traffic.queued == 1
        still = asyncio.create_task(board.next_signals(60.0))
        await asyncio.sleep(0)
        board.report(GatewayReport("g", Traffic(queued=2), 1, EMPTY, EMPTY, starved=True))
        await asyncio.sleep(0.01)
        assert not still.done(), "who starves is told once; then the period counts"
        still.cancel()
        assert (await board.next_signals(0.0)).traffic.queued == 2

    asyncio.run(scene())
    assert board.state()["autoscaler"]["alive"] is True
    cluster.now += 60
    assert board.state()["autoscaler"]["alive"] is False


def test_what_a_scaler_is_told(cluster: FakeCluster) -> None:
    facts: dict[str, Any] = {
        "queued_tokens": 7,
        "waiting": 1,
        "pulling": 1,
        "fetching": 2,
        "running": 3,
        "kv_blocks_used": 5,
        "kv_blocks_total": 50,
    }
    members = {name: member(name, "decode", **facts) for name in ("d1", "x")}
    members["d0"] = member("d0", "decode", running=2, kv_blocks_used=4, kv_blocks_total=50, queued_tokens=9)
    cluster.sight = replace(cluster.sight, members=members)
    cluster.set_past_the_board("decode", 2)
    cluster.place("decode", replica("d1"), replica("d0", "b", DRAINING))
    board = board_of(cluster, manual_hold_s=600.0, max_decode=9)
    asyncio.run(board.answer(HoldPool("decode", 50.0, "cli")))
    signals = asyncio.run(board.next_signals(0.0))
    decode = signals.pool("decode")
    assert (decode.target, decode.running, decode.starting, decode.draining) == (2, 1, 1, 1)
    assert (decode.queued_tokens, decode.waiting) == (7, 1), "who does not serve is not counted"
    assert decode.sequences == 9, "but who leaves still has its streams"
    assert (decode.kv_blocks_used, decode.kv_blocks_total) == (9, 50)
    assert (decode.low, decode.high, decode.held_until) == (1, 9, 1050.0)
    assert (decode.max_sequences, decode.npus_per_instance) == (32.0, 4)
    assert (signals.npus_total, signals.npus_free) == (16, 16 - 2 - 4 - 4)
    assert signals.cache is not None
    assert signals.cache.target == 1


def test_an_npu_budget_bounds_what_is_free(cluster: FakeCluster) -> None:
    signals = asyncio.run(board_of(cluster, npu_budget=8).next_signals(0.0))
    assert (signals.npus_total, signals.npus_free) == (8, 2)


def test_it_tells_whether_replicas_come_or_go(cluster: FakeCluster) -> None:
    moving = [ScalingBoard(config(), cluster, KeptValues(), cluster.clock).moving]
    board = board_of(cluster)
    moving.append(board.moving)
    asyncio.run(board.answer(ScalePool("decode", 2, None, "cli")))
    moving.append(board.moving)
    cluster.place("decode", replica("d1"), replica("d2"), replica("d0", "b", DRAINING))
    asyncio.run(board.look())
    moving.append(board.moving)
    assert moving == [True, False, True, True], "before the first look; at rest; one starts; one leaves"


# ---- its own death ---------------------------------------------------------------------------------------------------


def test_a_successor_knows_holds_ledger_and_targets(cluster: FakeCluster) -> None:
    gcs = FakeGcs()
    kept = KeptValues(GcsStore(lambda: gcs), "board/")
    asyncio.run(board_of(cluster, kept).answer(ScalePool("decode", 2, 60.0, "cli")))
    cluster.set_past_the_board("prefill", 3)  # while no board is running
    assert kept.settled(30.0)
    again = board_of(cluster, KeptValues(GcsStore(lambda: gcs), "board/"))
    assert rows(again) == [("decode", 1, 2, "held", "cli"), ("prefill", 1, 3, "held", "rest")]
    assert pool_row(again, "decode")["hold"] == {"left_s": 60.0, "by": "cli"}


def test_the_state_is_json(cluster: FakeCluster) -> None:
    state = json.loads(json.dumps(board_of(cluster).state()))
    assert state["npus"] == {"used": 6, "offered": 16}
    assert state["ub_memory_mib"] == {"used": 128 + 256 + 64, "offered": 2048}
    assert [row["pool"] for row in state["pools"]] == ["prefill", "decode", "kvcache"]
    assert {row["pool"]: row["fits"] for row in state["pools"]} == {"prefill": 6, "decode": 3, "kvcache": 26}
    assert state["decisions"] == []
