"""The client of one job at a gateway's core: it records and checks the output."""

from dataclasses import dataclass, field

from serving.values.jobs import Fail, GenerationJob, SequenceUpdate
from serving.values.sequence import FinishReason
from tests.fakes.executor import reference_output


@dataclass
class Client:
    """State of one job's client."""

    work: GenerationJob
    submitted: float
    told: list[list[int]]
    finish: list[FinishReason | None]
    stopped: set[int] = field(default_factory=set)
    failure: Fail | None = None
    cancelled: bool = False
    over: bool = False

    @property
    def begun(self) -> bool:
        return any(self.told)

    @property
    def deadline(self) -> float:
        return self.submitted + min(spec.time_left_s for spec in self.work.sequences)

    def hear(self, update: SequenceUpdate) -> None:
        """Receive new output of one choice."""
        index, news = update.index, update.news
        told = self.told[index]
        assert not self.over
        assert self.failure is None
        assert self.finish[index] is None, "news after the end"
        assert index not in self.stopped
        assert news.position == len(told), "each token once, and in order"
        once = (news.cached_tokens, news.pool, news.waited_s, update.queue_s)
        assert [one is not None for one in once] == [not told] * 4, "with the first tokens"
        assert len(news.logprobs) == len(news.tokens)
        told.extend(news.tokens)
        expected, reason = reference_output(self.work.sequences[index])
        assert tuple(told) == expected[: len(told)]
        self.finish[index] = news.finish_reason
        if news.finish_reason is not None:
            assert (tuple(told), news.finish_reason) == (expected, reason)
