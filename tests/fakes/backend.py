"""A `GenerationBackend` that plays a script: given tokens and delays, failures on demand, all calls recorded."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from serving.ids import SequenceId
from serving.values.jobs import GenerationJob, SequenceUpdate
from serving.values.news import Tokens
from serving.values.sequence import FinishReason, PoolUse, SequenceSpec, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Script:
    """Behaviour of one sequence.

    Args:
        tokens: output, cut at `max_tokens`; the end is LENGTH when cut, else `finish`.
        per_update: tokens delivered together.
        delay_s: pause before each batch of updates.
        fail_after: raise `error` after this many tokens of each sequence.
        hang_after: deliver no more after this many.
        resumptions, masked: reported with every update.
    """

    tokens: tuple[int, ...]
    finish: FinishReason = FinishReason.STOP
    per_update: int = 1
    delay_s: float = 0.0
    cached_tokens: int = 0
    pool: PoolUse | None = None
    fail_after: int | None = None
    error: Exception | None = None
    hang_after: int | None = None
    resumptions: int = 0
    masked: int = 0


ScriptOf = Callable[[SequenceSpec], Script]


@dataclass
class FakeGeneration:
    """One job in progress."""

    job: GenerationJob
    scripts: list[Script]
    cancelled: bool = False
    stopped: set[int] = field(default_factory=set)
    ended: bool = False
    delivered: list[int] = field(default_factory=list)
    replicas: Sequence[str] = ("prefill#a", "decode#b")

    def __post_init__(self) -> None:
        self.delivered = [0] * len(self.scripts)
        self._open = set(range(len(self.scripts)))

    async def next(self) -> Sequence[SequenceUpdate]:
        """One round: every open sequence advances by one update."""
        script = self.scripts[0]
        await asyncio.sleep(script.delay_s)
        if script.hang_after is not None and min(self.delivered) >= script.hang_after:
            await asyncio.Event().wait()
        if script.fail_after is not None and min(self.delivered) >= script.fail_after:
            self.ended = True
            assert script.error is not None, "fail_after needs an error"
            raise script.error
        updates = [self._advance(index) for index in sorted(self._open - self.stopped)]
        self.ended = not (self._open - self.stopped)
        return updates

    def _advance(self, index: int) -> SequenceUpdate:
        script, spec = self.scripts[index], self.job.sequences[index]
        sampling = spec.sampling
        start = self.delivered[index]
        whole = script.tokens[: sampling.max_tokens]
        tokens = whole[start : start + script.per_update]
        for i, token in enumerate(tokens):  # a stop token ends the sequence and is its last token
            if token in sampling.stop_token_ids and start + i >= sampling.min_tokens:
                tokens, whole = tokens[: i + 1], (*whole[:start], *tokens[: i + 1])
                break
        self.delivered[index] = start + len(tokens)
        reason = None
        if self.delivered[index] >= len(whole):
            self._open.discard(index)
            stopped = bool(tokens) and tokens[-1] in sampling.stop_token_ids
            reason = FinishReason.STOP if stopped else FinishReason.LENGTH
            if script.finish not in (FinishReason.STOP, FinishReason.LENGTH):
                reason = script.finish
        news = Tokens(spec.sequence_id, start, tuple(tokens), finish_reason=reason)
        if sampling.logprobs is not None:
            news = replace(
                news, logprobs=tuple(fake_logprobs(t, sampling.logprobs, sampling.logprob_ids) for t in tokens)
            )
        if start == 0:
            news = replace(news, cached_tokens=script.cached_tokens, pool=script.pool)
            if sampling.prompt_logprobs is not None:
                values = tuple(fake_logprobs(t, sampling.prompt_logprobs) for t in spec.prompt[1:])
                news = replace(news, prompt_logprobs=values)
        return SequenceUpdate(index, news, resumptions=script.resumptions, masked=script.masked)

    def stop(self, index: int) -> None:
        """Record the call, and play no more of this sequence."""
        self.stopped.add(index)

    def cancel(self) -> None:
        """Record the call."""
        self.cancelled = True

    def answered(self, answered: object) -> None:
        """Do nothing: this backend keeps no time lines."""


def output(tokens: tuple[int, ...] = (), *, queue_s: float | None = None, **told: Any) -> SequenceUpdate:
    """An update of a request's only choice.

    Args:
        told: fields of `Tokens`.
    """
    return SequenceUpdate(0, Tokens(SequenceId("r/0"), 0, tokens, **told), queue_s)


def fake_logprobs(token: int, top: int, ids: tuple[int, ...] = ()) -> TokenLogprobs:
    """-0.5 for the token, which is also its own best alternative, then the ids below it, or the named ones."""
    if ids:
        return TokenLogprobs(token, -0.5, tuple((one, -1.0 - i) for i, one in enumerate(ids)))
    return TokenLogprobs(token, -0.5, tuple((max(0, token - i), -0.5 - i) for i in range(top)))


@dataclass
class FakeBackend:
    """Plays `script_of(spec)` for every sequence."""

    script_of: ScriptOf
    refuse: Exception | None = None
    is_ready: bool = True
    jobs: list[GenerationJob] = field(default_factory=list)
    generations: list[FakeGeneration] = field(default_factory=list)

    def submit(self, job: GenerationJob) -> FakeGeneration:
        """Accept, or raise `refuse`."""
        if self.refuse is not None:
            raise self.refuse
        self.jobs.append(job)
        generation = FakeGeneration(job, [self.script_of(spec) for spec in job.sequences])
        self.generations.append(generation)
        return generation

    def ready(self) -> bool:
        """The configured state."""
        return self.is_ready
