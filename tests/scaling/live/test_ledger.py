"""The ledger is read by people and found again after a crash."""

import json
from pathlib import Path

import pytest

from serving.scaling.core.decision import ScaleKind
from serving.scaling.live.ledger import KEPT, Ledger


def filled(path: Path | None, count: int = 3) -> Ledger:
    ledger = Ledger(path)
    for i in range(count):
        ledger.add(100.0 + i, "decode" if i % 2 else "prefill", i, i + 1, ScaleKind.BURST, f"reason {i}", "autoscaler")
    return ledger


def test_newest_comes_first_and_can_be_chosen() -> None:
    ledger = filled(None, 5)
    assert [entry.id for entry in ledger.newest()] == [5, 4, 3, 2, 1]
    assert [entry.id for entry in ledger.newest("decode")] == [4, 2]
    assert [entry.id for entry in ledger.newest(after=3)] == [5, 4]
    assert [entry.id for entry in ledger.newest(limit=2)] == [5, 4]


def test_a_row_is_ready_for_json() -> None:
    (entry,) = filled(None, 1).newest()
    assert json.loads(json.dumps(entry.row())) == {
        "id": 1, "at": 100.0, "pool": "prefill", "before": 0, "target": 1, "kind": "burst", "reason": "reason 0",
        "by": "autoscaler",
    }  # fmt: skip


def test_a_successor_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    before = filled(path).newest()
    ledger = Ledger(path)
    assert ledger.newest() == before
    assert ledger.add(1.0, "decode", 1, 2, ScaleKind.HELD, "by hand", "cli").id == 4


def test_a_line_that_was_cut_short_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "decisions.jsonl"
    filled(path)
    path.write_text(path.read_text()[:-20])
    assert [entry.id for entry in Ledger(path).newest()] == [2, 1]
    assert "damaged line" in caplog.text


def test_what_follows_a_line_that_was_cut_short_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    filled(path)
    path.write_text(path.read_text()[:-20])
    Ledger(path).add(1.0, "decode", 1, 2, ScaleKind.HELD, "by hand", "cli")
    assert [entry.reason for entry in Ledger(path).newest()] == ["by hand", "reason 1", "reason 0"]


def test_successors_do_not_let_it_grow(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    filled(path, 2 * KEPT)
    Ledger(path).add(1.0, "decode", 1, 2, ScaleKind.HELD, "by hand", "cli")
    assert len(path.read_text().splitlines()) == KEPT


def test_it_is_bounded_in_memory_and_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    ledger = filled(path, 2 * KEPT + 10)
    assert len(ledger.newest()) == KEPT
    assert KEPT <= len(path.read_text().splitlines()) <= 2 * KEPT
    assert Ledger(path).newest() == ledger.newest()


def test_a_full_disk_costs_the_line_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ledger = filled(tmp_path, 2)  # a folder cannot be appended to
    assert len(ledger.newest()) == 2
    assert "not on disk" in caplog.text
