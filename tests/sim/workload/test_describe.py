"""Figures of a workload."""

from pathlib import Path

import pytest

from serving.sim.workload.describe import describe
from serving.sim.workload.errors import TraceError
from serving.sim.workload.open import open_workload
from serving.sim.workload.request import TraceRequest, Workload
from serving.sim.workload.synthetic import synthetic_workload
from tests.sim.workload.traces import CHAT, written


def test_figures_of_a_small_trace(tmp_path: Path) -> None:
    summary = describe(open_workload(written(tmp_path, CHAT, "chat")))
    assert (summary.name, summary.count, summary.duration_s, summary.rate_per_s) == ("chat", 4, 2.5, 1.6)
    assert (summary.prompt.mean, summary.prompt.largest) == ((1300 + 1024 + 100 + 2000) / 4, 2000)
    assert (summary.output.mean, summary.output.p50, summary.output.largest) == (6.5, 6.5, 8)
    # One block of the second request, two of the last.
    assert summary.ideal_reuse == 3 * 512 / (1300 + 1024 + 100 + 2000)
    assert list(summary.lines()) == [
        "chat: 4 requests in 2.5 s (1.60 per second)",
        "prompts: 1106 tokens on average, p50 1162, p90 1790, p99 1979, largest 2000",
        "answers: 6 tokens on average, p50 6, p90 8, p99 8, largest 8",
        "34.7% of prompt tokens repeat an earlier prompt's prefix",
    ]


def test_reuse_ends_at_the_first_block_that_differs() -> None:
    requests = [TraceRequest(0, 30, 1, (1, 2, 3)), TraceRequest(0, 30, 1, (1, 9, 3)), TraceRequest(0, 25, 1, (1, 2, 3))]
    assert describe(Workload("w", requests, block_tokens=10)).ideal_reuse == (10 + 25) / 85
    assert describe(Workload("w", requests, block_tokens=10)).rate_per_s == 0


def test_synthetic_reuse_is_what_was_asked_for() -> None:
    assert describe(synthetic_workload(10, 1000, 4096, 1, reuse=0.5)).ideal_reuse == pytest.approx(0.5, rel=0.001)


def test_scaling_keeps_the_reuse_of_whole_blocks(tmp_path: Path) -> None:
    path = written(tmp_path, CHAT)
    before, after = (describe(open_workload(path, length=factor)).ideal_reuse for factor in (1, 0.25))
    assert after == pytest.approx(before, rel=0.01)


def test_nothing_to_describe() -> None:
    with pytest.raises(TraceError, match="w: no request in it"):
        describe(Workload("w", []))
