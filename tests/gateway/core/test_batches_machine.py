"""A batch's lines are run by gateways that die at any moment; a plain set of stored results defines what is done."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from serving.errors import LedgerError
from serving.gateway.core.batches import (
    MOST_FAULTS,
    RETRY_MOST_S,
    BatchLedger,
    BatchLimits,
    BatchSpec,
    BatchState,
    BatchStatus,
    LineError,
    next_batch,
)

WINDOW_S = 1000.0
SPEC = BatchSpec("batch_1", "acme", "acme/1", 1.0, "/v1/completions", "file-1", "file-2", "file-3", 0.0, WINDOW_S)
ENDS = {BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED}


def ledger_of(lines: int, now: float = 0.0) -> BatchLedger:
    ledger = BatchLedger(SPEC, BatchState())
    ledger.has_input(lines, now)
    return ledger


class BatchMachine(RuleBasedStateMachine):
    """Gateways one after the other; what a store would keep is `stored`, with the state last written."""

    @initialize(lines=st.integers(1, 8))
    def begin(self, lines: int) -> None:
        self.now, self.lines = 0.0, lines
        self.state, self.stored = BatchState(), dict[int, bool]()
        self.running: set[int] = set()
        self.take_over()

    def take_over(self) -> None:
        self.ledger = BatchLedger(SPEC, self.state)
        self.running.clear()
        self.ledger.has_input(self.lines, self.now)
        for line, failed in self.stored.items():
            self.ledger.done(line, failed=failed)

    @rule(write=st.booleans())
    def die(self, write: bool) -> None:
        if write:
            self.state = self.ledger.state
        self.take_over()

    @rule()
    def start(self) -> None:
        line, open_lines = self.ledger.start(self.now), set(range(self.lines)) - self.stored.keys()
        if line is not None:
            assert line in open_lines - self.running, "none is answered twice"
            self.running.add(line)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), status=st.sampled_from([200, 200, 400, 408, 429, 500, 503]))
    def answer(self, data: st.DataObject, status: int) -> None:
        line = data.draw(st.sampled_from(sorted(self.running)))
        self.running.discard(line)
        if self.ledger.judge(line, status, None, self.now, 3.0):
            assert status not in (429, 503), "no capacity is no result"
            self.stored[line] = status != 200
            self.ledger.done(line, failed=status != 200)
        else:
            assert self.ledger.next_retry is not None

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        line = data.draw(st.sampled_from(sorted(self.running)))
        self.running.discard(line)
        self.ledger.drop(line, self.now)

    @rule(seconds=st.floats(0.0, 90.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def cancel(self) -> None:
        self.ledger.cancel(self.now)

    @rule()
    def end(self) -> None:
        end = self.ledger.due_end(self.now)
        if end is None or self.ledger.state.ended:
            return
        for line in sorted(self.running):
            self.ledger.drop(line, self.now)
        self.running.clear()
        self.ledger.finalize(end, self.now)
        self.state = self.ledger.state
        if end is BatchStatus.EXPIRED:
            for line in list(self.ledger.open_lines()):
                self.stored[line] = True
                self.ledger.done(line, failed=True)
        self.ledger.finish(self.now, output=True, errors=True)
        assert self.ledger.state.status in ENDS
        assert end is BatchStatus.CANCELLED or len(self.stored) == self.lines, "no line is lost"
        self.begin_again()

    def begin_again(self) -> None:
        self.now, self.state, self.stored = 0.0, BatchState(), {}
        self.take_over()

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.check()
            assert self.ledger.running == len(self.running)
            state = self.ledger.state
            assert (state.total, state.completed + state.failed) == (self.lines, len(self.stored))


TestBatch = BatchMachine.TestCase
TestBatch.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_refused_lines_wait_longer_each_time_and_before_new_ones() -> None:
    ledger, now, waits = ledger_of(3), 0.0, []
    assert ledger.start(now) == 0
    for _ in range(10):
        assert not ledger.judge(0, 503, None, now)
        assert ledger.next_retry is not None
        waits.append(ledger.next_retry - now)
        now = ledger.next_retry
        assert ledger.start(now) == 0, "before line 1"
    assert waits[:4] == [0.5, 1.0, 2.0, 4.0]
    assert waits[-1] == RETRY_MOST_S
    assert not ledger.judge(0, 429, None, now, after_s=70.0)
    assert ledger.start(now) == 1, "others do not wait for it"
    assert ledger.next_retry == now + RETRY_MOST_S


def test_faults_are_a_result_in_the_end_and_a_lost_engine_is_one_at_once() -> None:
    ledger, now = ledger_of(2), 0.0
    verdicts = []
    for _ in range(MOST_FAULTS):
        assert ledger.start(now) == 0
        verdicts.append(ledger.judge(0, 500, "internal_error", now))
        now += RETRY_MOST_S
    assert verdicts == [False] * (MOST_FAULTS - 1) + [True]
    assert ledger.start(now) == 1
    assert ledger.judge(1, 500, "engine_lost_repeatedly", now)


def test_seeds_are_the_same_in_every_run_and_differ_between_lines() -> None:
    seeds = [SPEC.seed(line) for line in range(100)]
    assert seeds == [SPEC.seed(line) for line in range(100)]
    assert len(set(seeds)) == 100
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_a_store_that_is_full_ends_a_batch_but_not_one_that_is_cancelled() -> None:
    errors = (LineError("storage_full", "full"),)
    ledger = ledger_of(1)
    ledger.refuse(errors, 1.0)
    assert ledger.due_end(1.0) is BatchStatus.FAILED
    ledger.finish(2.0, output=False, errors=False)
    assert (ledger.state.status, ledger.state.errors) == (BatchStatus.FAILED, errors)
    cancelled = ledger_of(1)
    cancelled.cancel(0.5)
    cancelled.refuse(errors, 1.0)
    assert cancelled.due_end(1.0) is BatchStatus.CANCELLED


def test_the_impossible_is_a_bug() -> None:
    ledger = ledger_of(1)
    with pytest.raises(LedgerError, match="does not run"):
        ledger.judge(0, 200, None, 0.0)
    ledger.done(0, failed=False)
    with pytest.raises(LedgerError, match="no line 0"):
        ledger.done(0, failed=False)
    with pytest.raises(LedgerError, match="cannot become"):
        ledger.state.moved(BatchStatus.CANCELLED, 0.0)


def test_batches_share_what_one_gateway_may_run() -> None:
    limits = BatchLimits(requests=5)
    assert [limits.share(running) for running in (0, 1, 2, 9)] == [5, 5, 2, 1]


def test_the_tenant_with_the_fewest_batches_here_is_next() -> None:
    waiting = [("a", "1"), ("b", "2"), ("b", "3")]
    assert next_batch(waiting, ()) == ("a", "1")
    assert next_batch(waiting, [("a", "0")]) == ("b", "2")
