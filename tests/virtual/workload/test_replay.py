"""Stretches, repetitions, limits and shards of a trace."""

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import ConfigError
from serving.virtual.workload.columns import LARGEST_ID, Columns, Row, TraceRequest, columns_of
from serving.virtual.workload.open import open_workload
from serving.virtual.workload.replay import Portion, Replay, Stretch
from serving.virtual.workload.reshaping import Sharder, sharded
from tests.cases.traces import CHAT, line, mooncake, written
from tests.virtual.workload.traces import listed

ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2000)), min_size=1, max_size=12)


def rows_of(drawn: list[tuple[int, int]]) -> list[Row]:
    """Requests some seconds apart; prompts of 512-token blocks with a common prefix."""
    arrivals = np.cumsum([gap for gap, _ in drawn]).tolist()
    return [
        (float(at), tokens, 1, tuple(range(-(-tokens // 512)))) for at, (_, tokens) in zip(arrivals, drawn, strict=True)
    ]


def replay(rows: list[Row], portion: Portion, stretch: Stretch | None = None) -> Replay:
    """A replay of these rows, in two batches."""
    stretch = stretch or Stretch()
    half = len(rows) // 2

    def batches() -> list[Columns]:
        return list(sharded(stretch.of([columns_of(rows[:half]), columns_of(rows[half:])]), portion.shard[1]))

    return Replay("rows", batches, 512, stretch, portion=portion)


def test_a_stretch_counts_from_its_start_and_repeats_as_long_as_was_said(tmp_path: Path) -> None:
    workload = open_workload(written(tmp_path, CHAT, "chat"), start_s=1, duration_s=1.5)
    assert [(r.arrival_s, r.prompt_tokens, r.blocks) for r in workload.requests] == [(0, 1024, (0, 3)), (0, 100, ())]
    assert (workload.count, workload.duration_s, workload.name) == (2, 0.0, "chat, 1-2.5 s")
    assert open_workload(written(tmp_path, CHAT, "chat"), start_s=1).name == "chat, 1- s"
    workload = open_workload(written(tmp_path, CHAT), duration_s=10, repeat=3, rate=2)
    assert [r.arrival_s for r in workload.requests][::4] == [0.0, 5.0, 10.0]
    assert [r.arrival_s for r in open_workload(written(tmp_path, mooncake(line(0, 9))), repeat=3).requests] == [0, 1, 2]
    path = written(tmp_path, mooncake(line(0, 9)))
    counts = [open_workload(path, repeat=4, shard=(which, 3)).count for which in range(3)]
    assert counts == [2, 1, 1]


def test_a_repetition_begins_where_the_trace_would_go_on_with_ids_of_its_own(tmp_path: Path) -> None:
    workload = open_workload(written(tmp_path, CHAT), repeat=2)
    once, again = listed(workload)[:4], listed(workload)[4:]
    period_s = 2.5 + 2.5 / 3
    assert [r.arrival_s for r in again] == [r.arrival_s + period_s for r in once]
    assert [r.blocks for r in again] == [tuple(block + 6 for block in r.blocks) for r in once]
    assert (workload.count, workload.duration_s) == (8, 2.5 + period_s)
    ids = (LARGEST_ID, 0, LARGEST_ID - 7)
    requests = listed(open_workload(written(tmp_path, mooncake(line(0, 1536, ids=ids))), repeat=4))
    flat = [block for request in requests for block in request.blocks]
    assert len(set(flat)) == 12
    assert all(0 <= block <= LARGEST_ID for block in flat)


@given(ROWS, st.integers(1, 4), st.integers(1, 60))
def test_repetitions_share_nothing_and_stay_in_order(drawn: list[tuple[int, int]], repeat: int, limit: int) -> None:
    rows = rows_of(drawn)
    requests = list(replay(rows, Portion(repeat, limit)))
    assert len(requests) == min(limit, repeat * len(rows))
    assert all(one.arrival_s <= two.arrival_s for one, two in pairwise(requests))
    passes = [requests[at : at + len(rows)] for at in range(0, len(requests), len(rows))]
    seen = [{block for request in one for block in request.blocks} for one in passes]
    assert sum(map(len, seen)) == len(set().union(*seen))


@given(ROWS, st.integers(1, 3), st.integers(1, 30), st.integers(1, 5))
def test_shards_are_the_whole(drawn: list[tuple[int, int]], repeat: int, limit: int, shards: int) -> None:
    rows = rows_of(drawn)
    whole = list(replay(rows, Portion(repeat, limit)))
    parts = [list(replay(rows, Portion(repeat, limit, (which, shards)))) for which in range(shards)]
    assert sorted(request for part in parts for request in part) == sorted(whole)
    assert all(part == sorted(part, key=lambda request: request.arrival_s) for part in parts)


@given(ROWS, st.integers(1, 3), st.integers(1, 30), st.integers(1, 3), st.floats(1, 8))
def test_what_is_measured_is_what_comes(
    drawn: list[tuple[int, int]], repeat: int, limit: int, shards: int, end_s: float
) -> None:
    rows = rows_of([(0, 1), *drawn])
    for which in range(shards):
        stream = replay(rows, Portion(repeat, limit, (which, shards)), Stretch(0, end_s))
        requests = list(stream)
        assert stream.measure() == (len(requests), requests[-1].arrival_s if requests else 0.0)
        assert list(stream) == requests


@pytest.mark.parametrize("shard", [(0, 1), (1, 2)])
def test_a_trace_that_is_not_kept_gives_the_same(tmp_path: Path, shard: tuple[int, int]) -> None:
    path = written(tmp_path, CHAT)
    stretches: tuple[dict[str, Any], ...] = ({}, {"start_s": 0.5}, {"duration_s": 2.0})
    for stretch in stretches:
        kept = open_workload(path, repeat=3, limit=10, rate=2, shard=shard, **stretch)
        streamed = open_workload(path, repeat=3, limit=10, rate=2, shard=shard, kept_bytes=0, **stretch)
        assert listed(streamed) == listed(kept) == listed(streamed)
        assert streamed.count is None
    assert streamed.duration_s == 3.0
    assert open_workload(path, kept_bytes=0).duration_s is None


def conversations(count: int, turns: int) -> list[Row]:
    """Conversations of growing prompts after one system prompt of a block, their turns interleaved."""
    fresh = iter(range(1, 1 << 30))
    blocks: dict[int, list[int]] = {one: [0] for one in range(count)}
    rows: list[Row] = []
    order = [one for one in range(count) for _ in range(turns)]
    Random("7/conversations").shuffle(order)
    for at, one in enumerate(order):
        blocks[one] += [next(fresh) for _ in range(3)]
        rows.append((float(at), 512 * len(blocks[one]), 1, tuple(blocks[one])))
    return rows


def test_conversations_stay_on_their_shard_and_shards_are_even() -> None:
    shards = 4
    (columns,) = sharded([columns_of(conversations(400, 5))], shards)
    assert columns.shard is not None
    owners: dict[int, list[int]] = {}
    for shard, request in zip(columns.shard.tolist(), columns.requests(), strict=True):
        owners.setdefault(request.blocks[1], []).append(shard)
    moved = sum(one != two for places in owners.values() for one, two in pairwise(places))
    assert moved <= 0.02 * len(columns)
    tokens = np.bincount(columns.shard, weights=columns.prompt_tokens, minlength=shards)
    assert tokens.max() <= 1.05 * tokens.mean()
    rows: list[Row] = [(float(at), 512 * 9, 1, (*range(8), 100 + at)) for at in range(400)]
    (columns,) = sharded([columns_of(rows)], 4)
    assert columns.shard is not None
    assert np.bincount(columns.shard).max() <= 0.25 * 400 * 1.1 + 5


def test_a_sharder_forgets_what_is_old() -> None:
    sharder = Sharder(2, remembered=4)
    assert sharder.assign(200, (1, 2)) == 0
    assert sharder.assign(100, (3, 4)) == 1
    assert sharder.assign(10, (1, 2)) == 0, "known from the old generation, and now in the young one again"
    for number in (5, 7, 9):
        assert sharder.assign(1, (number, number + 1)) == 1
    assert sharder.assign(10, (1, 2)) == 1, "forgotten, so it goes where the fewest tokens are"


def test_portions_and_stretches_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="shard -1 of 2"):
        Portion(shard=(-1, 2))
    with pytest.raises(ConfigError, match="repeat 0"):
        Portion(repeat=0)
    with pytest.raises(ConfigError, match="no stretch"):
        Stretch(3, 3)


def test_requests_are_plain_values(tmp_path: Path) -> None:
    request = listed(open_workload(written(tmp_path, CHAT), rate=3, length=1.5))[0]
    assert [type(value) for value in request] == [float, int, int, tuple, str]
    assert type(request) is TraceRequest
    assert all(type(block) is int for block in request.blocks)
