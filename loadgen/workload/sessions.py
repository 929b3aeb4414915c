"""Conversations of one or several turns, made from any source of prompts."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from loadgen.errors import UsageError
from loadgen.plan import Conversation, Turn, if_changed
from loadgen.workload.distributions import Distribution, Fixed
from loadgen.workload.lengths import Lengths
from loadgen.workload.ports import Workload
from loadgen.workload.source import Asker, Question, Source

_ONE_TURN = Lengths(Fixed(1))
_NO_PAUSE = Fixed(0.0)


@dataclass(frozen=True)
class Sessions:
    """Workload of multi-turn users with think times. Endless.

    Attributes:
        source: their prompts. output_tokens: length of each response.
        turns: of a conversation. think_s: pause before each turn but the first [s]; below 0 counts as 0.
        max_model_tokens: most tokens that history, prompt and response may have together. A first prompt and its
        response
            are shortened to fit; a conversation ends before a later turn that would not fit whole. Shortened turns and
            conversations record it (`plan.Turn.asked_input_tokens` and related fields).
        turn_overhead_tokens: tokens that the chat template adds to each turn, for that budget.
    """

    source: Source
    output_tokens: Lengths
    turns: Lengths = _ONE_TURN
    think_s: Distribution = _NO_PAUSE
    max_model_tokens: int | None = None
    turn_overhead_tokens: int = 0

    def __post_init__(self) -> None:
        """Raises: UsageError if not even one token of prompt and one of response fit, or no request as configured."""
        if self.max_model_tokens is None:
            return
        if self.max_model_tokens < 2 + self.turn_overhead_tokens:
            raise UsageError(
                f"a model length of {self.max_model_tokens} tokens leaves no room for a prompt and an answer"
            )
        prompt, answer = self.source.least_tokens, self.output_tokens.least
        if prompt + answer + self.turn_overhead_tokens > self.max_model_tokens:
            template = f" and {self.turn_overhead_tokens} of the chat template" if self.turn_overhead_tokens else ""
            raise UsageError(
                f"no request fits the model: the shortest prompt has {prompt} tokens and the shortest answer {answer}"
                f"{template}, but the model takes {self.max_model_tokens} in all; shorten one of them, or give the "
                "server's true limit as --max-model-len"
            )

    def conversations(self, rng: np.random.Generator) -> Iterator[Conversation]:
        """See `Workload`.

        Raises: UsageError for conversations of several turns from token ids, whose history cannot be written.
        """
        asker = self.source.open(rng)
        while True:
            yield self._conversation(asker, rng)

    def _conversation(self, asker: Asker, rng: np.random.Generator) -> Conversation:
        wanted = self.turns.draw(rng)
        answers = self.output_tokens
        room = None if self.max_model_tokens is None else self.max_model_tokens - self.turn_overhead_tokens
        first = asker.first(rng, None if room is None else room - 1)
        asked_answer = answers.asked(rng)
        answer_tokens = answers.fitted(asked_answer, None if room is None else room - first.tokens)
        turns = [_turn(first, answer_tokens, asked_answer)]
        if wanted > 1 and isinstance(first.prompt, list) and any(isinstance(part, int) for part in first.prompt):
            raise UsageError("conversations of several turns need --prompt-kind text: answers come as text, not as ids")
        used = first.tokens + answer_tokens
        for _ in range(wanted - 1):
            think_s = max(0.0, self.think_s.value(rng))
            question, asked_answer = asker.later(rng), answers.asked(rng)
            answer_tokens = answers.fitted(asked_answer)
            used += question.tokens + answer_tokens + self.turn_overhead_tokens
            if room is not None and used > room:
                break
            turns.append(_turn(question, answer_tokens, asked_answer, think_s))
        return Conversation(turns=turns, tenant=first.tenant, turns_left_out=wanted - len(turns))


def _turn(question: Question, output_tokens: int, asked_output_tokens: int, think_s: float = 0.0) -> Turn:
    """One turn; the length of its prompt only if it is certain."""
    return Turn(
        prompt=question.prompt,
        output_tokens=output_tokens,
        input_tokens=question.tokens if question.exact else None,
        asked_input_tokens=if_changed(question.asked_tokens, question.tokens),
        asked_output_tokens=if_changed(asked_output_tokens, output_tokens),
        think_s=think_s,
    )


# A data set that restarts when it ends.


@dataclass(frozen=True)
class Cycled:
    """Endless repetition of a finite workload.

    Times of the data set continue: each round starts at the end of the previous one plus the mean gap between its
    conversations, so that the transition has the data set's own rate.
    """

    workload: Workload

    def conversations(self, rng: np.random.Generator) -> Iterator[Conversation]:
        """See `Workload`.

        Raises: UsageError if the workload is empty, or if its times do not advance.
        """
        shift_s = 0.0
        while True:
            count, first_s, latest_s = 0, None, None
            for conversation in self.workload.conversations(rng):
                count += 1
                if conversation.arrival_s is None:
                    yield conversation
                    continue
                latest_s = conversation.arrival_s
                first_s = latest_s if first_s is None else first_s
                yield msgspec.structs.replace(conversation, arrival_s=latest_s + shift_s)
            if not count:
                raise UsageError("the data set holds no conversation that can be sent")
            if first_s is not None and latest_s is not None:
                extent_s = latest_s - first_s
                gap_s = extent_s / (count - 1) if count > 1 else latest_s
                if extent_s + gap_s <= 0:
                    raise UsageError(
                        "the data set's times do not advance, so that it cannot be cycled; give --request-rate"
                    )
                shift_s += extent_s + gap_s
