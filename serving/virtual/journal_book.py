"""Records of requests, one row each, and of decisions."""

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence

from serving.config.scaling import SloConfig
from serving.values.news import FailKind, Tokens
from serving.values.signals import Traffic
from serving.virtual.result import FAILURES, NO_PAUSE, DecisionRecord, Outcome, RequestColumns

_KEPT_OF_A_KIND = 200
_NAN = math.nan
NO_JOB = -1, 0, NO_PAUSE, 0
"""`Book.next_turn` of a request that is of no job."""


class Book:
    """Collects the result of one supernode."""

    def __init__(self, on_empty: Callable[[], None], slo: SloConfig) -> None:
        """
        Args:
            on_empty: called whenever the last open request has ended.
            slo: limits that a request must meet to count as good.
        """
        self._on_empty = on_empty
        self.on_end: Callable[[int], None] | None = None
        """Called with the row whenever a request has ended."""
        self.next_turn: tuple[int, int, float, int] = NO_JOB
        """Of the next request: job, its turns, pause before it [s] and repeated tokens; see `RequestColumns`."""
        self.tally = TrafficTally(slo)
        self.rows = RequestColumns()
        self.open_rows = 0
        self.tokens_out = 0
        self.prompt_tokens_in = 0
        self.hit = 0
        """Sequences that lost their instance."""
        self.counts: Counter[str] = Counter()
        self._kept: dict[str, deque[tuple[float, str, str, str, str]]] = {}
        """Arguments of `DecisionRecord`, which are turned into records only when they are read."""

    def arrive(self, arrival_s: float, prompt_tokens: int) -> int:
        """Add a request that has arrived. Returns: its row."""
        rows = self.rows
        row = len(rows.arrival_s)
        rows.arrival_s.append(arrival_s)
        rows.first_token_s.append(_NAN)
        rows.finish_s.append(_NAN)
        rows.prompt_tokens.append(prompt_tokens)
        rows.output_tokens.append(0)
        rows.cached_tokens.append(0)
        rows.pulled_tokens.append(0)
        rows.attempts.append(0)
        rows.outcome.append(Outcome.UNFINISHED)
        rows.queue_s.append(_NAN)
        rows.adopted_s.append(_NAN)
        job, turns, pause_s, repeated = self.next_turn
        rows.job.append(job)
        rows.job_turns.append(turns)
        rows.pause_s.append(pause_s)
        rows.repeated_tokens.append(repeated)
        rows.failure.append(-1)
        self.next_turn = NO_JOB
        self.tally.arrived_tokens += prompt_tokens
        self.open_rows += 1
        return row

    def sent(self, row: int) -> None:
        """Record that a request was sent to a prefill instance."""
        rows = self.rows
        if not rows.attempts[row]:
            self.prompt_tokens_in += rows.prompt_tokens[row]
        rows.attempts[row] += 1

    def adopted(self, row: int, now: float) -> None:
        """Record when a decode instance first holds a request's KV; later times, after a loss, are ignored."""
        rows = self.rows
        if rows.adopted_s[row] != rows.adopted_s[row]:
            rows.adopted_s[row] = now

    def deliver(self, row: int, news: Tokens, now: float, queue_s: float | None = None) -> None:
        """Record tokens that reach the client.

        Args:
            queue_s: with the first tokens, time that the request waited before its prompt was started [s].
        """
        rows = self.rows
        count = len(news.tokens)
        if count:
            if not rows.output_tokens[row]:
                rows.first_token_s[row] = now
                self.tally.first_token(now - rows.arrival_s[row])
                if queue_s is not None:
                    rows.queue_s[row] = queue_s
            rows.output_tokens[row] += count
            self.tokens_out += count
        if news.cached_tokens is not None:
            rows.cached_tokens[row] = news.cached_tokens
            self.tally.uncached_tokens += rows.prompt_tokens[row] - news.cached_tokens
            if news.pool is not None:
                rows.pulled_tokens[row] = news.pool.pulled_tokens

    def failed(self, row: int, kind: FailKind, subject: str, reason: str, now: float) -> None:
        """Record that a request failed, and why."""
        self.decided(now, "fail", subject, kind.value, reason)
        self.rows.failure[row] = FAILURES.index(kind)
        self.end(row, Outcome.FAILED, now)

    def end(self, row: int, outcome: Outcome, now: float) -> None:
        """Record the end of a request."""
        rows = self.rows
        rows.outcome[row] = outcome
        if outcome is Outcome.FINISHED:
            rows.finish_s[row] = now
        self.tally.ended(rows, row, outcome)
        self.open_rows -= 1
        if self.on_end is not None:
            self.on_end(row)
        if not self.open_rows:
            self._on_empty()

    def decided(self, now: float, kind: str, subject: str, choice: str, reason: str) -> None:
        """Count a decision; the latest ones of each kind are kept."""
        self.counts[kind] += 1
        kept = self._kept.get(kind)
        if kept is None:
            kept = self._kept[kind] = deque(maxlen=_KEPT_OF_A_KIND)
        kept.append((now, kind, subject, choice, reason))

    def decisions(self) -> list[DecisionRecord]:
        """The decisions that were kept, in order of time."""
        kept = [DecisionRecord(*one) for kept in self._kept.values() for one in kept]
        return sorted(kept, key=lambda one: (one.at_s, one.kind))


# Traffic totals over all gateways of a supernode, for the autoscaler.


class TrafficTally:
    """Counters that only grow; `traffic` reads them."""

    __slots__ = (
        "_oldest", "_slo", "arrived_tokens", "finished", "rejected", "tpot_met", "tpot_missed", "ttft_met",
        "ttft_missed", "uncached_tokens",
    )  # fmt: skip

    def __init__(self, slo: SloConfig) -> None:
        self._slo = slo
        self._oldest = 0
        """First row that may still wait for its first token."""
        self.arrived_tokens = 0
        self.uncached_tokens = 0
        self.finished = 0
        self.rejected = 0
        self.ttft_met = 0
        self.ttft_missed = 0
        self.tpot_met = 0
        self.tpot_missed = 0

    def first_token(self, after_s: float) -> None:
        """Count a first token, `after_s` seconds after its request, for the TTFT SLO."""
        if after_s <= self._slo.ttft_s:
            self.ttft_met += 1
        else:
            self.ttft_missed += 1

    def ended(self, rows: RequestColumns, row: int, outcome: Outcome) -> None:
        """Count the end of a request. Failed requests count as rejected, because their client got an error."""
        self.finished += 1
        if outcome is not Outcome.FINISHED:
            self.rejected += 1
            return
        further = rows.output_tokens[row] - 1
        if further > 0:
            tpot_s = (rows.finish_s[row] - rows.first_token_s[row]) / further
            if tpot_s <= self._slo.tpot_s:
                self.tpot_met += 1
            else:
                self.tpot_missed += 1

    def traffic(self, rows: RequestColumns, tokens_out: int, waiting: Sequence[tuple[int, int]], now: float) -> Traffic:
        """Traffic up to now.

        Args:
            waiting: for each gateway, the requests in its queue and their prompt tokens.
        """
        return Traffic(
            arrived=len(rows),
            arrived_tokens=self.arrived_tokens,
            uncached_tokens=self.uncached_tokens,
            finished=self.finished,
            generated_tokens=tokens_out,
            ttft_met=self.ttft_met,
            ttft_missed=self.ttft_missed,
            tpot_met=self.tpot_met,
            tpot_missed=self.tpot_missed,
            rejected=self.rejected,
            queued=sum(requests for requests, _ in waiting),
            queued_tokens=sum(tokens for _, tokens in waiting),
            oldest_wait_s=self._oldest_wait_s(rows, now),
        )

    def _oldest_wait_s(self, rows: RequestColumns, now: float) -> float:
        row, count = self._oldest, len(rows)
        while row < count and (rows.outcome[row] != Outcome.UNFINISHED or not math.isnan(rows.first_token_s[row])):
            row += 1
        self._oldest = row
        return now - rows.arrival_s[row] if row < count else 0.0
