"""`cloudmatrix experts record` and `trial`: received slices are kept, however the recording ends."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serving.cli import experts_record
from serving.cli.experts import add_arguments, run
from serving.cli.experts_record import AGAIN_S, load_trace, record
from serving.errors import ConfigError, RoutingTraceError, UnavailableError
from tests.fakes.clock import ManualClock


class FakeGroup:
    """A gateway that returns slices of two ranks, one per request."""

    def __init__(self) -> None:
        self.slice = 10
        self.asked: list[int | None] = []
        self.fails: Callable[[int], BaseException | None] = lambda number: None

    def order(self, url: str, key: str | None, order: str, fields: dict[str, Any]) -> dict[str, Any]:
        assert order == "load"
        after = fields["after"]
        self.asked.append(after)
        error = self.fails(len(self.asked))
        if error is not None:
            raise error
        self.slice += 1
        numbers = range(after + 1, self.slice + 1) if after is not None else ()
        slices = [{"at_s": 2.0 * at, "rank": rank, "rows": [[at, 1], [0, rank]]} for at in numbers for rank in range(2)]
        return {"layers": 2, "experts": 2, "slice_s": 2.0, "last": self.slice, "slices": slices}


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> FakeGroup:
    fake = FakeGroup()
    monkeypatch.setattr(experts_record, "order_experts", fake.order)
    monkeypatch.setattr(experts_record, "fetch_experts", lambda url, key: {"groups": [{"group": "decode#a"}]})
    return fake


def recorded(path: Path, **more: Any) -> str:
    clock = ManualClock()

    def sleep(seconds: float) -> None:
        clock.seconds += seconds

    return record("url", None, path, clock=clock.now, sleep=sleep, **more)


def trial(path: Path, *more: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(["trial", str(path), "--ranks", "2", *more])


def test_a_trace_of_some_time_is_recorded(group: FakeGroup, tmp_path: Path) -> None:
    said = recorded(tmp_path / "t.jsonl", duration_s=7.0)
    assert "8 slices of 2 s by rank, of decode#a" in said
    trace = load_trace(tmp_path / "t.jsonl")
    assert [(one.at_s, one.rank) for one in trace.slices] == [
        (2.0 * at, rank) for at in range(12, 16) for rank in (0, 1)
    ]
    assert group.asked == [None, 11, 12, 13, 14]


def test_ctrl_c_keeps_what_came(group: FakeGroup, tmp_path: Path) -> None:
    group.fails = lambda number: KeyboardInterrupt() if number == 4 else None
    assert "4 slices" in recorded(tmp_path / "t.jsonl")
    assert len(load_trace(tmp_path / "t.jsonl").slices) == 4


def test_a_group_that_is_silent_for_a_while_loses_nothing(group: FakeGroup, tmp_path: Path) -> None:
    """A shell may be replaced: its ranks keep counting, and the window has several slices."""
    group.fails = lambda number: UnavailableError("no answer") if number in (3, 4) else None
    recorded(tmp_path / "t.jsonl", duration_s=10.0)
    assert group.asked == [None, 11, 12, 12, 12, 13]
    assert len(load_trace(tmp_path / "t.jsonl").slices) == 6


def test_a_group_that_does_not_come_back_ends_it_and_what_came_is_kept(group: FakeGroup, tmp_path: Path) -> None:
    group.fails = lambda number: UnavailableError("no answer") if number > 2 else None
    with pytest.raises(UnavailableError):
        recorded(tmp_path / "t.jsonl")
    assert len(load_trace(tmp_path / "t.jsonl").slices) == 2
    assert len(group.asked) > AGAIN_S / 2


def test_a_file_never_grows_without_bound(group: FakeGroup, tmp_path: Path) -> None:
    assert "as much as a file may have" in recorded(tmp_path / "t.jsonl", most_bytes=1000)
    assert 1000 <= (tmp_path / "t.jsonl").stat().st_size < 1200


def test_a_file_that_cannot_be(group: FakeGroup, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write"):
        recorded(tmp_path / "no" / "t.jsonl")
    with pytest.raises(ConfigError, match="cannot read"):
        load_trace(tmp_path / "none")


def test_policies_are_tried_on_a_file(group: FakeGroup, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.jsonl"
    recorded(path, duration_s=9.0)
    assert run(trial(path)) == 0
    text = capsys.readouterr().out
    assert "time_sliced" in text
    assert "2 ranks, 1 redundant slots each" in text
    assert run(trial(path, "--json")) == 0
    assert '"balancedness"' in capsys.readouterr().out
    path.write_text("nothing")
    with pytest.raises(RoutingTraceError):
        run(trial(path))
