"""The ledger is readable for people and is restored after a crash."""

import json

from serving.cluster.gcs_store import KeptValues
from serving.scaling.core.decision import ScaleKind
from serving.scaling.core.ledger import KEPT, PER_VALUE, Ledger


def filled(kept: KeptValues | None = None, count: int = 3) -> Ledger:
    ledger = Ledger(kept)
    for i in range(count):
        ledger.add(100.0 + i, "decode" if i % 2 else "prefill", i, i + 1, ScaleKind.BURST, f"reason {i}", "autoscaler")
    return ledger


def test_newest_comes_first_and_can_be_chosen() -> None:
    ledger = filled(count=5)
    assert [entry.id for entry in ledger.newest()] == [5, 4, 3, 2, 1]
    assert [entry.id for entry in ledger.newest("decode")] == [4, 2]
    assert [entry.id for entry in ledger.newest(after=3)] == [5, 4]
    assert [entry.id for entry in ledger.newest(limit=2)] == [5, 4]


def test_a_row_is_ready_for_json() -> None:
    (entry,) = filled(count=1).newest()
    assert json.loads(json.dumps(entry.row())) == {
        "id": 1, "at": 100.0, "pool": "prefill", "before": 0, "target": 1, "kind": "burst", "reason": "reason 0",
        "by": "autoscaler",
    }  # fmt: skip


def test_a_successor_goes_on() -> None:
    kept = KeptValues()
    before = filled(kept).newest()
    ledger = Ledger(kept)
    assert ledger.newest() == before
    assert ledger.add(1.0, "decode", 1, 2, ScaleKind.HELD, "by hand", "cli").id == 4
    assert [entry.reason for entry in Ledger(kept).newest()] == ["by hand", "reason 2", "reason 1", "reason 0"]


def test_a_line_that_makes_no_sense_is_left_out() -> None:
    kept = KeptValues()
    filled(kept)
    (key,) = kept.keys("decisions/")
    kept.set(key, (kept.get(key) or b"")[:-20])
    again = Ledger(kept)
    assert [entry.id for entry in again.newest()] == [2, 1]
    assert again.warnings == ["a damaged line of decisions/000000000 is left out"]


def test_it_is_bounded_in_memory_and_where_it_is_kept() -> None:
    kept = KeptValues()
    ledger = filled(kept, KEPT + 2 * PER_VALUE + 10)
    assert len(ledger.newest()) == KEPT
    values = [kept.get(key) or b"" for key in kept.keys("decisions/")]
    assert len(values) <= KEPT // PER_VALUE + 1
    assert max(value.count(b"\n") for value in values) <= PER_VALUE
    assert Ledger(kept).newest() == ledger.newest()
