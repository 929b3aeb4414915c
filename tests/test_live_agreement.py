"""Parts of the comparison: one trace for both sides, and a table that can report disagreement."""

import itertools
import tomllib
from pathlib import Path

import pytest

from loadgen.trace import TraceRecord, open_trace
from serving.config.load import load_config
from tests.benchmarks.bench_live_agreement import virtual_rows
from tests.benchmarks.live_agreement.live import live_setup
from tests.benchmarks.live_agreement.outcome import Row, compare
from tests.benchmarks.live_agreement.trace import Shape, write_made

SHAPE = Shape(requests=400, rate=50.0, most_prompt=8192, most_answer=128, seed=3)


def lines(path: Path) -> list[TraceRecord]:
    return list(open_trace(path).requests())


def test_a_made_trace_follows_from_its_seed_and_keeps_its_bounds(tmp_path: Path) -> None:
    first, again, other = (tmp_path / name for name in ("a", "b", "c"))
    write_made(first, SHAPE)
    write_made(again, SHAPE)
    write_made(other, Shape(400, 50.0, 8192, 128, seed=4))
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()
    made = lines(first)
    assert len(made) == 400
    assert max(one.input_tokens for one in made) <= 8192
    assert 8 <= min(one.output_tokens for one in made)
    assert max(one.output_tokens for one in made) <= 128
    assert all(len(one.hash_ids) == -(-one.input_tokens // 512) for one in made)
    assert made[-1].arrival_s == pytest.approx(8, rel=0.2)
    blocks = [block for one in made for block in one.hash_ids]
    assert 0.1 < 1 - len(set(blocks)) / len(blocks) < 0.6, "prefixes are shared"


def test_bursts_keep_the_rate(tmp_path: Path) -> None:
    path = tmp_path / "bursts"
    write_made(path, Shape(4000, 50.0, 8192, 128, seed=3, burstiness=0.1))
    times = [one.arrival_s * 1000 for one in lines(path)]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert times[-1] == pytest.approx(80_000, rel=0.2)
    assert sum(gap < 1.0 for gap in gaps) > 0.5 * len(gaps)


def test_the_shipped_configuration_is_varied_and_valid(tmp_path: Path) -> None:
    path = tmp_path / "live.toml"
    path.write_text(live_setup(0.1, 2).toml())
    config = load_config(path)
    assert (config.simulation.time_scale, config.prefill.replicas) == (0.1, 2)
    assert tomllib.loads(path.read_text())["cluster"]["dashboard_port"] == 0
    path.write_text(live_setup(0.1, 0).toml())
    assert load_config(path).prefill.replicas == 6


def test_virtual_time_tells_every_request(tmp_path: Path) -> None:
    path, trace = tmp_path / "live.toml", tmp_path / "trace"
    path.write_text(live_setup(0.1, 0).toml())
    write_made(trace, SHAPE)
    rows = virtual_rows(load_config(path), trace)
    assert [row.output_tokens for row in rows] == [one.output_tokens for one in lines(trace)]
    assert all(0.04 < row.ttft_s < 60.0 for row in rows)
    assert sum(row.cached_tokens for row in rows) > 0


def rows(factor: float = 1.0, tail: float = 1.0) -> list[Row]:
    return [Row(0.1 * factor * (tail if n >= 980 else 1.0), 0.02, 9, 0) for n in range(1000)]


@pytest.mark.parametrize(
    ("factor", "tail", "agrees"), [(1.04, 1.0, True), (1.06, 1.0, False), (1.0, 1.14, True), (1.0, 1.16, False)]
)
def test_medians_within_5_and_tails_within_15_percent(factor: float, tail: float, agrees: bool) -> None:
    assert all(one.met is not False for one in compare(rows(factor, tail), rows())) is agrees


def test_only_answers_of_the_same_requests_are_compared() -> None:
    with pytest.raises(ValueError, match="different requests"):
        compare(rows(), rows()[:-1])
