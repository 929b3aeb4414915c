"""An autoscaler's view of the traffic: each met or missed SLO is counted once, and waiting requests are known."""

import math

import pytest

from serving.config.scaling import SloConfig
from serving.ids import SequenceId
from serving.values.news import Tokens
from serving.values.signals import Traffic
from serving.virtual.journal_book import Book
from serving.virtual.result import Outcome

NAME = SequenceId("g0-0/0@1")


def book() -> Book:
    return Book(lambda: None, SloConfig(ttft_s=1.0, tpot_s=0.1))


def traffic(kept: Book, now: float) -> Traffic:
    return kept.tally.traffic(kept.rows, kept.tokens_out, [(2, 30), (1, 5)], now)


def test_promises_are_counted_as_they_are_kept_or_broken() -> None:
    kept = book()
    for row, (first, last) in enumerate([(0.5, 0.9), (1.5, 1.7), (0.2, 3.0)]):
        assert kept.arrive(0.0, 100) == row
        kept.deliver(row, Tokens(NAME, 0, (0,), cached_tokens=40), first)
        kept.deliver(row, Tokens(NAME, 0, (0, 0, 0)), last)
        kept.end(row, Outcome.FINISHED, last)
    seen = traffic(kept, 4.0)
    assert (seen.ttft_met, seen.ttft_missed) == (2, 1)
    assert (seen.tpot_met, seen.tpot_missed) == (1, 2)
    assert (seen.arrived, seen.arrived_tokens, seen.uncached_tokens) == (3, 300, 180)
    assert (seen.finished, seen.generated_tokens, seen.rejected) == (3, 12, 0)
    assert (seen.queued, seen.queued_tokens, seen.oldest_wait_s) == (3, 35, 0.0)
    kept = book()
    kept.arrive(0.0, 1)
    kept.deliver(0, Tokens(NAME, 0, (0,)), 0.5)
    kept.end(0, Outcome.FINISHED, 0.5)
    for outcome in (Outcome.REJECTED, Outcome.FAILED):
        kept.end(kept.arrive(0.0, 1), outcome, 2.0)
    seen = traffic(kept, 2.0)
    assert (seen.tpot_met, seen.tpot_missed) == (0, 0)
    assert (seen.finished, seen.rejected) == (3, 2)
    assert math.isnan(kept.rows.finish_s[1])


def test_the_oldest_without_a_first_token_is_known() -> None:
    kept = book()
    for at in (0.0, 1.0, 2.0):
        kept.arrive(at, 10)
    assert traffic(kept, 5.0).oldest_wait_s == pytest.approx(5.0)
    kept.deliver(1, Tokens(NAME, 0, (0,)), 5.0)
    assert traffic(kept, 6.0).oldest_wait_s == pytest.approx(6.0)
    kept.end(0, Outcome.FAILED, 6.0)
    assert traffic(kept, 7.0).oldest_wait_s == pytest.approx(5.0)
    kept.deliver(2, Tokens(NAME, 0, (0,)), 7.0)
    assert traffic(kept, 8.0).oldest_wait_s == 0.0
