"""Conversations in virtual time: turns start after what they wait for and their pause, whatever the system's speed."""

from dataclasses import replace
from pathlib import Path

import pytest

from serving.errors import ConfigError
from serving.tools.planning.trace import TraceChoice
from serving.virtual.capacity import length_limit, lengths_warning
from serving.virtual.report.summary import summarize
from serving.virtual.result import NO_PAUSE, Outcome, RequestColumns
from serving.virtual.simulation import cost_model, simulate
from serving.virtual.supernode import Supernode
from serving.virtual.workload.columns import RequestStream, TraceError
from serving.virtual.workload.open import open_workload
from tests.cases.traces import AGENTS, TRACELAB, asks, conversation, mooncake, written
from tests.virtual.core.case import config


def agents(folder: Path, text: str = AGENTS, **settings: object) -> RequestStream:
    return open_workload(written(folder, text, "agents.jsonl"), **settings)  # type: ignore[arg-type]


def turns_of(rows: RequestColumns, job: int) -> list[int]:
    return [row for row in range(len(rows)) if rows.job[row] == job]


def test_a_turn_starts_its_pause_after_all_that_it_waits_for(tmp_path: Path) -> None:
    result = simulate(config(), agents(tmp_path), check=True)
    rows = result.requests
    assert set(rows.outcome) == {Outcome.FINISHED}
    first, second, one, two, three, last = turns_of(rows, 0)  # by arrival: the branch of one turn comes third
    starts, ends = rows.arrival_s, rows.finish_s
    assert starts[second] == pytest.approx(ends[first] + 3)
    assert starts[one] == pytest.approx(ends[second] + 2)
    assert sorted((starts[two], starts[three])) == pytest.approx(sorted((ends[one] + 6, ends[second] + 10)))
    assert starts[last] == pytest.approx(max(ends[two], ends[three]) + 1)
    assert [rows.pause_s[row] for row in (second, one, last)] == [3, 2, 1]
    assert rows.pause_s[first] == NO_PAUSE
    assert [rows.repeated_tokens[row] for row in (first, second, last)] == [0, 640, 640]


def test_a_slow_system_delays_the_turns_after(tmp_path: Path) -> None:
    long = mooncake(conversation("a", asks(0, 640, 4000), asks(5, 700)))
    rows = simulate(config(), agents(tmp_path, long)).requests
    assert rows.finish_s[0] > 20
    assert rows.arrival_s[1] == pytest.approx(rows.finish_s[0] + 3)


def test_a_turn_that_fails_does_not_stop_its_job(tmp_path: Path) -> None:
    text = mooncake(conversation("a", asks(0, 640), asks(5, 200_000, runs=[[1, 3125]]), asks(9, 640)))
    rows = simulate(config(), agents(tmp_path, text), check=True).requests
    assert list(rows.outcome) == [Outcome.FINISHED, Outcome.FAILED, Outcome.FINISHED]


def test_prompts_that_do_not_fit_are_known_before_the_run_and_told_after_it(tmp_path: Path) -> None:
    small = asks(0, 640)
    fits, long = conversation("a", small, asks(5, 131_000)), conversation("b", small, asks(5, 200_000))
    setup = config()
    limit = length_limit(setup, cost_model(setup))
    assert (limit.tokens, limit.reason) == (131_072, "[engine] max_model_len")
    both = agents(tmp_path, mooncake(fits, long))
    warned = lengths_warning(both, limit)
    assert warned.startswith("1 of 2 conversations cannot complete: each has a prompt above 131,072 tokens")
    assert "longest has 200,000; remedies: --length 0.640625, --set engine.max_model_len=200001" in warned
    jobs = summarize(simulate(setup, both)).jobs
    assert jobs is not None
    assert [(reason[:45], count) for reason, count in jobs.incomplete.items()] == [
        ("a prompt longer than an instance holds: short", 1)
    ]
    assert not lengths_warning(agents(tmp_path, mooncake(fits, long), length=0.640625), limit)
    with pytest.raises(ConfigError, match="no conversation can complete: each has a prompt above 131,072"):
        lengths_warning(agents(tmp_path, mooncake(long)), limit)


def test_a_kv_cache_that_is_too_small_for_a_prompt(tmp_path: Path) -> None:
    setup = config()
    setup = replace(setup, engine=replace(setup.engine, max_model_len=1_000_000))
    limit = length_limit(setup, cost_model(setup))
    node = Supernode(setup, cost_model(setup), 0)
    held = {pool: node.start_instance(pool).kv_blocks for pool in ("prefill", "decode")}
    held["decode"] //= node.groups_of(setup.decode.npus_per_instance)
    assert limit.tokens == min(held.values()) * setup.engine.block_tokens < 1_000_000
    assert limit.reason.startswith("the KV cache of a ")


def test_no_more_is_read_than_the_limit(tmp_path: Path) -> None:
    text = mooncake(conversation("a", asks(0, 640)), conversation("b", asks(0, 640))) + "broken"
    assert agents(tmp_path, text, limit=1).count == 1
    with pytest.raises(TraceError, match=":3: not JSON"):
        agents(tmp_path, text, limit=2)


def test_prefixes_are_found_again(tmp_path: Path) -> None:
    text = mooncake(conversation("a", asks(0, 5120), asks(9, 6400)), conversation("b", asks(0, 5120)))
    rows = simulate(config(), agents(tmp_path, text)).requests
    cached = {(rows.job[row], rows.prompt_tokens[row]): rows.cached_tokens[row] for row in range(3)}
    assert cached == {(0, 5120): 0, (0, 6400): 5120, (1, 5120): 0}


def test_a_closed_loop_of_conversations(tmp_path: Path) -> None:
    text = mooncake(*(conversation(f"c{n}", asks(0, 640), asks(5, 640)) for n in range(6)))
    rows = simulate(config(), agents(tmp_path, text).closed(2), check=True).requests
    for job in range(2, 6):
        begun = min(rows.arrival_s[row] for row in turns_of(rows, job))
        running = [
            other for other in range(job)
            if min(rows.arrival_s[row] for row in turns_of(rows, other)) <= begun
            < max(rows.finish_s[row] for row in turns_of(rows, other))
        ]  # fmt: skip
        assert len(running) < 2


def test_a_stretch_is_scaled_repeated_and_shared_out(tmp_path: Path) -> None:
    text = mooncake(*(conversation(f"c{n}", asks(0, 640), asks(5, 640)) for n in range(8)))
    whole = agents(tmp_path, text)
    jobs = list(whole.jobs or ())
    assert (whole.count, len(jobs), whole.name) == (8, 8, "agents.jsonl")
    faster = list(agents(tmp_path, text, rate=2.0).jobs or ())
    assert [job.start_s * 2 for job in faster] == pytest.approx([job.start_s for job in jobs])
    assert faster[0].turns == jobs[0].turns  # pauses are as they were
    parts = [list(agents(tmp_path, text, shard=(number, 3)).jobs or ()) for number in range(3)]
    assert sorted(job.number for part in parts for job in part) == list(range(8))
    twice = list(agents(tmp_path, text, repeat=2, limit=12).jobs or ())
    assert [job.number for job in twice] == list(range(12))
    ids = [{one for turn in job.turns for one in turn.blocks()} for job in twice]
    assert sum(map(len, ids)) == len(set.union(*ids))
    later = list(agents(tmp_path, text, start_s=jobs[3].start_s).jobs or ())
    assert [(job.name, job.start_s) for job in later[:1]] == [("c3", 0.0)]
    half = agents(tmp_path, text, length=0.5)
    assert (half.block_tokens, next(iter(half.jobs or ())).turns[0].prompt_tokens) == (32, 320)


def test_sessions_of_tracelab_are_jobs(tmp_path: Path) -> None:
    found = list(agents(tmp_path, TRACELAB).jobs or ())
    assert [(len(job.turns), job.start_s) for job in found] == [(5, 0), (1, 60)]
    assert [turn.repeated_blocks for turn in found[0].turns] == [0, 3, 4, 2, 3]


def test_what_cannot_be_done_with_conversations(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no conversation starts in this stretch"):
        agents(tmp_path, start_s=1e6)
    with pytest.raises(TraceError, match="a plan needs the requests' own times"):
        TraceChoice(written(tmp_path, AGENTS)).open()
    with pytest.raises(ConfigError, match="leave nothing of the trace's blocks"):
        agents(tmp_path, length=0.001)
