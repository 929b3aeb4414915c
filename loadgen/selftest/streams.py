"""Scheduling of the blast server: the times at which each stream gets its tokens."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from loadgen.selftest.answers import RenderedAnswers, SelftestRequest


@dataclass(frozen=True, slots=True)
class StreamPace:
    """Pace of each stream.

    Attributes:
        lockstep: all streams get their tokens at the same moments, as from an engine that decodes a batch step by step;
            else each stream has its own times.
    """

    tokens_per_s: float
    ttft_s: float
    lockstep: bool = False


class Stream:
    """One response in progress.

    Attributes:
        write: to its connection. paused: the connection's buffer is full. gone: the client disconnected.
    """

    __slots__ = ("answers", "ask", "done", "gone", "paused", "request_id", "sent", "started_s", "total", "write")

    def __init__(
        self,
        ask: SelftestRequest,
        answers: RenderedAnswers,
        request_id: bytes,
        write: Callable[[bytes], None],
        done: Callable[[], None],
    ) -> None:
        self.ask = ask
        self.answers = answers
        self.request_id = request_id
        self.write = write
        self.done = done
        self.sent = 0
        self.total = ask.output_tokens
        self.started_s = 0.0
        self.paused = False
        self.gone = False

    def tokens(self, count: int = 1) -> bool:
        """Send some more, in one write but in an event each; true after the last."""
        self.sent += count
        if self.sent < self.total:
            self.write(self.answers.content * count)
            return False
        left = self.total - (self.sent - count)
        self.write(self.answers.content * (left - 1) + self.answers.last_content)
        self.write(self.answers.tail(self.ask, self.total))
        self.sent = self.total
        return True


class Server:
    """All streams and counters.

    Attributes:
        running, waiting, finished, aborted: streams. input_tokens, output_tokens: totals so far.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        pace: StreamPace | None,
        stall: tuple[float, float] | None = None,
        slots: int | None = None,
        burst: int = 1,
        model: str = "blast",
        chunk_bytes: int = 250,
        api_key: str = "",
    ) -> None:
        self.model = model
        self.api_key = api_key
        self.chat = RenderedAnswers(chat=True, model=model, chunk_bytes=chunk_bytes)
        self.completions = RenderedAnswers(chat=False, model=model, chunk_bytes=chunk_bytes)
        self.running = self.finished = self.aborted = self.input_tokens = self.output_tokens = 0
        self._loop = loop
        self._pace = pace
        self._stall = stall
        self._slots = slots
        self._burst = burst
        self._queue: deque[Stream] = deque()
        self._blasting: list[Stream] = []  # and, in lockstep, those that wait for the next step
        self._round_due = False
        self._step = 0  # of lockstep, counted from the clock's start

    @property
    def waiting(self) -> int:
        """Streams that wait for a slot."""
        return len(self._queue)

    def begin(self, stream: Stream) -> None:
        """Start a stream, or queue it until a slot is free."""
        if self._stall is not None:
            self._loop.call_later(self._stall[0], time.sleep, self._stall[1])
            self._stall = None
        if self._slots is not None and self.running >= self._slots:
            self._queue.append(stream)
        else:
            self._start(stream)

    def leave(self, stream: Stream) -> None:
        """Record that the client disconnected."""
        self.aborted += 1
        stream.gone = True
        if stream in self._queue:
            self._queue.remove(stream)
        else:
            self._end(stream)

    def metrics(self) -> str:
        """A part of vLLM's /metrics."""
        label = f'{{model_name="{self.model}",engine="0"}}'
        lines = []
        for name, kind, value in (
            ("vllm:num_requests_running", "gauge", self.running),
            ("vllm:num_requests_waiting", "gauge", self.waiting),
            ("vllm:kv_cache_usage_perc", "gauge", 0),
            ("vllm:prompt_tokens", "counter", self.input_tokens),
            ("vllm:generation_tokens", "counter", self.output_tokens),
            ("vllm:prefix_cache_queries", "counter", self.input_tokens),
            ("vllm:prefix_cache_hits", "counter", 0),
        ):
            sample = f"{name}_total" if kind == "counter" else name
            lines += [f"# TYPE {sample} {kind}", f"{sample}{label} {value}"]
        lines.append("# TYPE vllm:request_success_total counter")
        for reason, count in (("length", self.finished), ("abort", self.aborted)):
            labels = f'{label[:-1]},finished_reason="{reason}"}}'
            lines.append(f"vllm:request_success_total{labels} {count}")
        return "\n".join(lines) + "\n"

    def _start(self, stream: Stream) -> None:
        self.running += 1
        self.input_tokens += stream.ask.input_tokens
        stream.started_s = time.monotonic()
        if not stream.ask.stream:
            pace = self._pace
            wait = pace.ttft_s + (stream.total - 1) / pace.tokens_per_s if pace is not None else 0.0
            self._loop.call_later(wait, self._whole, stream)
            return
        stream.write(stream.answers.head(stream.request_id))
        if self._pace is None:
            self._join(stream)
        else:
            take = self._join if self._pace.lockstep else self._paced
            self._loop.call_later(self._pace.ttft_s, take, stream)

    def _join(self, stream: Stream) -> None:
        self._blasting.append(stream)
        self._want_round()

    def _whole(self, stream: Stream) -> None:
        if not stream.gone:
            stream.write(stream.answers.whole(stream.ask, stream.request_id))
            self.output_tokens += stream.total
            self._complete(stream)

    def _paced(self, stream: Stream) -> None:
        """Send what is due by the stream's own clock, so that a late timer delays no later token."""
        pace = self._pace
        assert pace is not None
        if stream.gone:
            return
        due = int((time.monotonic() - stream.started_s - pace.ttft_s) * pace.tokens_per_s + 1e-6) + 1
        while stream.sent < min(due, stream.total) and not stream.paused:
            self.output_tokens += 1
            if stream.tokens():
                self._complete(stream)
                return
        next_s = stream.started_s + pace.ttft_s + max(stream.sent, due) / pace.tokens_per_s
        self._loop.call_later(max(0.0, next_s - time.monotonic()), self._paced, stream)

    def _want_round(self) -> None:
        if self._round_due:
            return
        self._round_due = True
        if self._pace is None:
            self._loop.call_soon(self._round)
        else:
            now_s, rate = time.monotonic(), self._pace.tokens_per_s
            self._step = max(self._step, int(now_s * rate)) + 1  # a timer may be early: never the same step twice
            self._loop.call_later(self._step / rate - now_s, self._round)

    def _round(self) -> None:
        """Write a burst (one token by default) to every stream."""
        self._round_due = False
        ended = False
        idle = True
        for stream in self._blasting:
            if stream.gone:
                ended = True
            elif not stream.paused:
                idle = False
                self.output_tokens += min(self._burst, stream.total - stream.sent)
                if stream.tokens(self._burst):
                    stream.gone = ended = True
                    self._complete(stream)
        if ended:
            self._blasting = [stream for stream in self._blasting if not stream.gone]
        if self._blasting and not idle:
            self._want_round()

    def resume(self, stream: Stream) -> None:
        """Continue a stream whose connection accepts data again."""
        stream.paused = False
        if stream in self._blasting:
            self._want_round()

    def _complete(self, stream: Stream) -> None:
        self.finished += 1
        self._end(stream)
        stream.done()

    def _end(self, stream: Stream) -> None:
        self.running -= 1
        while self._queue and (self._slots is None or self.running < self._slots):
            self._start(self._queue.popleft())
