"""Lifecycle of one request, reported to its gateway's metrics as it proceeds."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serving.telemetry.metrics import GatewayMetrics


RESUME_SOURCES = ("hbm", "dram", "ssd", "computed")
"""Where the prompt tokens of a session's next turn come from: the instance's own cache, the pool's tiers, or none."""


class RecentSessions:
    """Sessions of the latest requests, which tell a next turn from a first one. Bounded; the latest last."""

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def note(self, namespace: str, session: str) -> bool:
        """Remember a request's session, empty = none. Returns: whether an earlier request had it."""
        if not session:
            return False
        known = (namespace, session) in self._known
        self._known[namespace, session] = None
        self._known.move_to_end((namespace, session))
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return known


class RequestTimeline:
    """Timestamps of one request. Called once per batch of updates, without lookups by name."""

    __slots__ = (
        *("_cached", "_first", "_good", "_last", "_max_tokens", "_metrics", "_n", "_namespace", "_preempted"),
        *("_next_turn", "_prompts", "_queue", "_resumed", "_started", "_submitted", "_tokens"),
    )

    def __init__(
        self,
        metrics: "GatewayMetrics",
        prompts: Sequence[int],
        n: int,
        max_tokens: int | None,
        arrived: float,
        namespace: str,
        *,
        next_turn: bool = False,
    ) -> None:
        """
        Args:
            next_turn: an earlier request had the same session.
        """
        self._metrics = metrics
        self._next_turn = next_turn
        self._prompts = tuple(prompts)
        self._n = n
        self._max_tokens = max_tokens
        self._submitted = metrics.clock()
        choices = len(self._prompts) * n
        self._queue = [0.0] * choices
        self._cached = [0] * choices
        self._preempted = [0] * choices
        self._resumed = [0] * choices
        self._good = 0
        self._namespace = namespace
        self._started = arrived
        self._first = [0.0] * choices
        self._last = [0.0] * choices
        self._tokens = [0] * choices

    def begun(
        self,
        index: int,
        queue_s: float,
        cached_tokens: int,
        *,
        pulled_tokens: int = 0,
        ssd_tokens: int = 0,
        recomputed: Mapping[str, int] | None = None,
    ) -> None:
        """Record that work on choice `index` started after `queue_s` [s] in the queue. Call once per choice; the prompt
        counts with the first.

        Args:
            cached_tokens: prompt tokens that were not computed; `pulled_tokens` of them were pulled from the pool, and
                `ssd_tokens` of those from SSD.
            recomputed: prompt tokens computed although the pool should have had them, by reason.
        """
        self._queue[index] = queue_s
        self._cached[index] = cached_tokens
        if index % self._n:
            return
        metrics, prompt = self._metrics, self._prompts[index // self._n]
        metrics.counts["prompt_tokens"] += prompt
        metrics.counts["prompt_tokens_cached"] += cached_tokens
        metrics.counts["prompt_tokens_pulled"] += pulled_tokens
        metrics.recomputed.update(recomputed or {})
        if self._next_turn:
            tiers = (cached_tokens - pulled_tokens, pulled_tokens - ssd_tokens, ssd_tokens, prompt - cached_tokens)
            metrics.resume_tokens.update(dict(zip(RESUME_SOURCES, tiers, strict=True)))
        metrics.namespaces.prompt_tokens[self._namespace] += prompt
        metrics.namespaces.cached_tokens[self._namespace] += cached_tokens

    def preempted(self, index: int, times: int) -> None:
        """Record that choice `index` has been preempted `times` times so far."""
        self._preempted[index] = times

    def resumed(self, index: int, times: int) -> None:
        """Record that choice `index` has resumed on another instance `times` times so far."""
        self._metrics.counts["resumptions"] += times - self._resumed[index]
        self._resumed[index] = times

    def tokens(self, index: int, count: int, now: float) -> None:
        """Record `count` new tokens of choice `index`, which arrived at `now`."""
        metrics, last = self._metrics, self._last[index]
        if last:
            metrics.inter_token.observe((now - last) / count, count)
        else:
            metrics.ttft.observe(now - self._started)
            self._first[index] = now
            if count > 1:
                metrics.inter_token.observe(0.0, count - 1)
        self._last[index] = now
        self._tokens[index] += count
        metrics.counts["generation_tokens"] += count

    def finished(self, index: int, reason: str, now: float) -> None:
        """Record the end of choice `index`."""
        metrics, count = self._metrics, self._tokens[index]
        metrics.outcomes[reason] += 1
        if reason not in ("stop", "length"):
            return
        self._good += 1
        prompt = self._prompts[index // self._n]
        decode = self._last[index] - self._first[index]
        prefill = max(0.0, (self._first[index] or now) - self._submitted - self._queue[index])
        metrics.e2e.observe(now - self._started)
        metrics.queue_time.observe(self._queue[index])
        metrics.prefill_time.observe(prefill)
        metrics.decode_time.observe(decode)
        metrics.inference_time.observe(prefill + decode)
        metrics.prompt_length.observe(prompt)
        metrics.kv_computed.observe(max(0, prompt - self._cached[index]))
        metrics.generation_length.observe(count)
        metrics.preemptions.observe(self._preempted[index])
        if count > 1:
            metrics.per_output_token.observe(decode / (count - 1))

    def ended(self) -> None:
        """Record the end of the whole request, with any outcome."""
        metrics = self._metrics
        if self._good == len(self._tokens):
            metrics.params_n.observe(self._n)
            metrics.longest.observe(max(self._tokens))
            if self._max_tokens is not None:
                metrics.params_max_tokens.observe(self._max_tokens)
        metrics.in_flight -= 1
