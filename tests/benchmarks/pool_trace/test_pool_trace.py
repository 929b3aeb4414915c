"""The simulation behind bench_pool_hit_rate: times computed by hand, and memories that differ as they should."""

import json
import random
from pathlib import Path

import pytest

from loadgen.errors import TraceFormatError, UsageError
from serving.gateway.core.locality import PrefixHistory
from serving.ids import BlockHash
from tests.benchmarks.bench_pool_hit_rate import main
from tests.benchmarks.pool_trace.memories import InfiniteMemory, LocalMemory, Memory, PooledMemory, Rules
from tests.benchmarks.pool_trace.simulation import Outcome, Router, Simulation, by_load, by_locality
from tests.benchmarks.pool_trace.trace import Request, ideal, read_trace


def request(arrival_s: float, *numbers: int, tokens: int | None = None) -> Request:
    blocks = tuple(BlockHash(random.Random(n).randbytes(16)) for n in numbers)
    return Request(arrival_s, 512 * len(blocks) if tokens is None else tokens, blocks)


def play(memory: Memory, requests: list[Request], instances: int = 1, router: Router = by_load) -> Outcome:
    return Simulation(memory, router, instances, 512.0).run(requests)


def conversations(count: int, turns: int) -> list[Request]:
    """Conversations at random times; each turn repeats the one before and adds two blocks."""
    rng = random.Random(5)
    requests = []
    for number in range(count):
        time = rng.uniform(0.0, 2000.0)
        for turn in range(turns):
            requests.append(request(time, *(1000 * number + block for block in range(2 * turn + 2))))
            time += rng.uniform(30.0, 90.0)
    return sorted(requests, key=lambda one: one.arrival_s)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "small.jsonl"
    rows = [(0, 700, [1, 3]), (3000, 1024, [1, 2]), (4000, 600, [1, 2])]
    lines = [{"timestamp": t, "input_length": n, "output_length": 1, "hash_ids": ids} for t, n, ids in rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_trace_is_read_in_order_of_time(trace: Path) -> None:
    first, second, third = read_trace(trace, speed=2.0)
    assert [r.arrival_s for r in (first, second, third)] == [0.0, 1.5, 2.0]
    assert [r.tokens for r in (first, second, third)] == [700, 1024, 600]
    assert first.blocks[0] == second.blocks[0] == third.blocks[0]
    assert len({*first.blocks, *second.blocks, *third.blocks}) == 3
    assert len(read_trace(trace, limit=2)) == 2


def test_a_trace_that_cannot_be_played_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_trace(tmp_path / "absent")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(UsageError, match="no request in it"):
        read_trace(tmp_path / "empty")
    (tmp_path / "bad").write_text("{}\n")
    with pytest.raises(TraceFormatError, match="bad:1"):
        read_trace(tmp_path / "bad")


def test_the_ideal_counts_repeated_leading_blocks_and_their_tokens(trace: Path) -> None:
    best = ideal(read_trace(trace))
    assert best.unique_blocks == 3
    assert best.block_share == pytest.approx(3 / 6)
    assert best.token_share == pytest.approx((512 + 600) / (700 + 1024 + 600))
    gap = ideal([request(0, 1, 2, 3), request(1, 1, 9, 3)])
    assert gap.block_share == pytest.approx(1 / 6)


def test_one_instance_computes_one_prompt_after_the_other() -> None:
    outcome = play(InfiniteMemory(), [request(0.0, 1, 2), request(0.5, 3), request(10.0, 4)])
    assert outcome.waits_s == [0.0, 1.5, 0.0]
    assert outcome.ttfts_s == [2.0, 2.5, 1.0]
    assert outcome.busy_s == [4.0]
    assert outcome.hit_blocks == 0


def test_blocks_can_be_found_when_they_are_computed_not_when_they_are_asked_for() -> None:
    outcome = play(InfiniteMemory(), [request(0.0, 1, 2), request(0.1, 1, 2), request(5.0, 1, 2)], instances=2)
    assert (outcome.blocks, outcome.hit_blocks) == (6, 2)
    # The last token is computed even where all blocks are there.
    assert outcome.hit_tokens == 1023
    assert outcome.ttfts_s[2] == pytest.approx(1 / 512)


def test_load_routing_leaves_no_instance_idle_while_others_queue() -> None:
    outcome = play(InfiniteMemory(), [request(0.0, n) for n in range(8)], instances=4)
    assert sorted(outcome.waits_s) == [0.0] * 4 + [1.0] * 4
    assert outcome.imbalance == 1.0


def test_a_pool_is_everybodys_and_a_local_part_its_instances_own() -> None:
    blocks = request(0, 1, 2, 3).blocks
    pooled, local = PooledMemory(2, 64, Rules()), LocalMemory(2, 64, Rules())
    for memory in (pooled, local):
        memory.store(0, blocks[:2], 0.0)
    assert [pooled.fetch(instance, blocks, 1.0) for instance in (0, 1)] == [2, 2]
    assert [local.fetch(instance, blocks, 1.0) for instance in (0, 1)] == [2, 0]


@pytest.mark.parametrize("rules", [Rules(), Rules("fifo", 1.0, 1.0)])
def test_a_memory_holds_about_as_much_as_it_was_given(rules: Rules) -> None:
    memory = LocalMemory(1, 160, rules)
    many = request(0, *range(1000)).blocks
    for one in many:
        memory.store(0, [one], 0.0)
    held = sum(memory.fetch(0, [one], 1.0) for one in many)
    assert 0.85 * 160 <= held <= rules.high_water * 160


def test_the_pool_finds_more_than_its_parts_and_locality_more_than_chance() -> None:
    requests = conversations(100, 6)
    best = ideal(requests)
    pooled = play(PooledMemory(4, 320, Rules()), requests, 4)
    local = play(LocalMemory(4, 320, Rules()), requests, 4)
    followed = play(LocalMemory(4, 320, Rules()), requests, 4, by_locality(PrefixHistory(80)))
    assert local.block_hit_rate < followed.block_hit_rate < pooled.block_hit_rate <= best.block_share


def test_a_run_is_the_same_every_time() -> None:
    requests = conversations(10, 4)
    first, second = (play(PooledMemory(3, 60, Rules("cost")), requests, 3) for _ in range(2))
    assert first == second


def test_the_command_prints_tables_and_one_line_of_json(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trace", str(trace), "--sizes", "50", "--instances", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("local, locality" in line for line in lines)
    figures = json.loads(lines[-1])["figures"]["small"]
    assert figures["ideal_block_hit_rate"] == 0.5
    assert [(run["design"], run["eviction"]) for run in figures["runs"]] == [
        ("endless", "lru"),
        ("pool", "lru"),
        ("local, load", "lru"),
        ("local, locality", "lru"),
        ("pool", "lfu"),
        ("pool", "fifo"),
        ("pool", "cost"),
    ]


@pytest.mark.parametrize("only", ["designs", "evictions"])
def test_either_comparison_runs_alone(trace: Path, only: str) -> None:
    assert main(["--trace", str(trace), "--sizes", "50", "--instances", "2", "--only", only]) == 0


def test_the_command_says_what_is_missing_or_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "no trace given" in capsys.readouterr().out
    assert main(["--trace", str(tmp_path / "absent")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    for wrong in (["--sizes", "0"], ["--water", "0.5", "0.9"]):
        with pytest.raises(SystemExit, match="2"):
            main(["--trace", "x", *wrong])
