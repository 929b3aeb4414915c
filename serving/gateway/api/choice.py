"""One choice on its way from tokens to text: detokenizing, stop strings, log-probabilities, counts.

Pure except for its own state. It takes a backend's updates and returns the output that became visible, from which
`forms` builds the wire formats.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from serving.errors import DeadlineError, EngineError
from serving.gateway.api.detokenizer import StopStrings, make_detokenizer
from serving.gateway.api.tokenizer import Tokenizer
from serving.gateway.api.tools.family import OutputParser
from serving.gateway.api.tools.reader import Part, ReasoningPart
from serving.gateway.api.translate import OutputOptions
from serving.values.jobs import SequenceUpdate
from serving.values.news import Tokens
from serving.values.sequence import DraftUse, FinishReason, PoolUse, TokenLogprobs


@dataclass(frozen=True, slots=True)
class LogprobEntry:
    """Log-probability of one token and where its text starts in the choice's text; None for a first prompt token."""

    token: int
    offset: int
    values: TokenLogprobs | None


@dataclass(slots=True)
class Visible:
    """Output that one update made visible.

    Args:
        parts: pieces of the output, none of them empty.
        finish: `stop`, `length`, `tool_calls` or `function_call` with the last piece.
        stop_reason: the stop string or the stop token that ended the choice, when it was not the end token.
        stopped_by_text: a stop string ended the choice; the backend has not been notified.
    """

    parts: list[Part] = field(default_factory=list)
    tokens: tuple[int, ...] = ()
    logprobs: list[LogprobEntry] = field(default_factory=list)
    finish: str | None = None
    stop_reason: str | int | None = None
    stopped_by_text: bool = False

    @property
    def text(self) -> str:
        """The text among the parts."""
        parts = self.parts
        if len(parts) == 1 and type(parts[0]) is str:  # by far the most common
            return parts[0]
        return "".join(part for part in parts if isinstance(part, str))


class ChoiceOutput:
    """State of one choice. Attributes without an underscore are public."""

    __slots__ = (
        "_detokenizer",
        "_needs_each_token",
        "_options",
        "_parser",
        "_prompt",
        "_stops",
        "_tokenizer",
        "cached_tokens",
        "called",
        "completion_tokens",
        "drafts",
        "finished",
        "index",
        "masked_tokens",
        "pool",
        "prompt_logprobs",
        "reasoning_tokens",
        "resumptions",
        "started",
        "text_length",
    )

    def __init__(self, index: int, prompt: tuple[int, ...], options: OutputOptions, tokenizer: Tokenizer) -> None:
        self.index = index
        self.text_length = 0
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.called: tuple[str, ...] = ()
        """Names of the tools that it ends by calling."""
        self.pool: PoolUse | None = None
        self.drafts = DraftTally()
        self.resumptions = 0
        self.masked_tokens = 0
        self.finished = False
        self.started = False
        self.prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        self._prompt = prompt
        self._options = options
        self._tokenizer = tokenizer
        self._detokenizer = make_detokenizer(
            tokenizer, skip_special_tokens=options.skip_special_tokens, behind=prompt if options.goes_on else ()
        )
        self._stops = StopStrings(options.stops, include=options.include_stop) if options.stops else None
        # Several tokens of one update may be decoded together unless something depends on each token's own text.
        self._needs_each_token = bool(options.stops) or options.logprobs is not None
        self._parser = options.reading.parser() if options.reading is not None else None
        self.reasoning_tokens = 0

    def push(self, update: SequenceUpdate) -> Visible:
        """Process one update.

        Raises: DeadlineError, EngineError if the sequence failed.
        """
        out, event = Visible(), update.news
        self.resumptions = max(self.resumptions, update.resumptions)
        self.masked_tokens = max(self.masked_tokens, update.masked)
        if not self.started:
            self._start(event, out)
        elif event.cached_tokens is not None:
            self.cached_tokens = event.cached_tokens
            self.pool = event.pool
        if event.drafts is not None:
            self.drafts.add(event.drafts)
        tokens = event.tokens
        if tokens and not self._options.discard:
            self._take(event, tokens, out)
        if event.finish_reason is not None:
            out.stopped_by_text = False  # the backend ended it in the same update
            if out.finish is None:
                self._finish(event.finish_reason, tokens, out)
        return out

    def _start(self, event: Tokens, out: Visible) -> None:
        """Copy the prompt's data from the first update, and output an echoed prompt."""
        self.started = True
        self.cached_tokens = event.cached_tokens or 0
        self.pool = event.pool
        self.prompt_logprobs = event.prompt_logprobs
        options = self._options
        if options.opening:
            out.parts.append(options.opening)
        if not options.echo:
            return
        front, back = self._unsent()
        if options.logprobs is not None:
            echoed = make_detokenizer(self._tokenizer, skip_special_tokens=False)
            values: list[TokenLogprobs | None] = [None, *event.prompt_logprobs]
            pieces: list[str] = []
            for position, token in enumerate(self._prompt):
                value = values[position] if position < len(values) else None
                sent = front <= position < back
                offset = self.text_length + (echoed.broken_off(token) if sent else 0)
                out.logprobs.append(LogprobEntry(token, offset, value))
                pieces.append(echoed.push((token,)) if sent else "")
                if position == back - 1:
                    pieces[-1] += echoed.flush()
                self.text_length += len(pieces[-1])
            text = "".join(pieces)
        else:
            text = self._tokenizer.decode(self._prompt[front:back], skip_special_tokens=False)
            self.text_length += len(text)
        if text:
            out.parts.append(text)

    def _unsent(self) -> tuple[int, int]:
        """Start and end of the client's own prompt, without the tokens that the tokenizer added around it."""
        prompt, (before, behind) = self._prompt, self._options.unsent
        front = len(before) if prompt[: len(before)] == before else 0
        back = len(prompt) - len(behind) if behind and prompt[-len(behind) :] == behind else len(prompt)
        return front, max(front, back)

    def _take(self, event: Tokens, tokens: tuple[int, ...], out: Visible) -> None:
        """Convert new tokens to text. A stop token itself gives no text unless stops are to be included."""
        silent_last = event.finish_reason is FinishReason.STOP and not self._options.include_stop
        if self._parser is not None:
            self._read(self._parser, event, tokens, silent_last, out)
            return
        if not self._needs_each_token:
            self.completion_tokens += len(tokens)
            self._let_out(self._detokenizer.push(tokens[:-1] if silent_last else tokens), out)
            out.tokens = tokens
            return
        last = len(tokens) - 1
        for i, token in enumerate(tokens):
            self._count(token, i, event, out)
            self._emit("" if silent_last and i == last else self._detokenizer.push((token,)), out)
            if out.finish is not None:
                out.tokens = tokens[: i + 1]
                return
        out.tokens = tokens

    def _count(self, token: int, i: int, event: Tokens, out: Visible) -> None:
        """Count one more token, the `i`th of an update."""
        if self._options.logprobs is not None:
            held = self._stops.held if self._stops is not None else 0
            offset = self.text_length + held + self._detokenizer.broken_off(token)
            out.logprobs.append(LogprobEntry(token, offset, event.logprobs[i] if i < len(event.logprobs) else None))
        self.completion_tokens += 1

    def _read(
        self, parser: OutputParser, event: Tokens, tokens: tuple[int, ...], silent_last: bool, out: Visible
    ) -> None:
        """Convert new tokens to text, reasoning and calls. Stop strings only match in the text."""
        last = len(tokens) - 1
        for i, token in enumerate(tokens):
            self._count(token, i, event, out)
            thinking = parser.thinking
            if not silent_last or i < last:
                if token in parser.of_token:
                    self._show(parser.text(self._detokenizer.flush()), out)
                    self._show(parser.token(token), out)
                else:
                    self._show(parser.text(self._detokenizer.push((token,))), out)
            self.reasoning_tokens += thinking or parser.thinking
            if out.finish is not None:
                out.tokens = tokens[: i + 1]
                return
        out.tokens = tokens

    def _show(self, parts: Sequence[Part], out: Visible) -> None:
        """Output parts; text passes the stop strings."""
        reading = self._options.reading
        assert reading is not None, "there is a parser"
        for part in parts:
            if out.finish is not None:
                return
            if isinstance(part, str):
                self._emit(part, out)
                continue
            if self._stops is not None:
                self._let_out(self._stops.flush(), out)
            if reading.shows_reasoning or not isinstance(part, ReasoningPart):
                out.parts.append(part)

    def _emit(self, piece: str, out: Visible) -> None:
        """Output text after the stop strings; ends the choice when one is complete."""
        if self._stops is None:
            self._let_out(piece, out)
            return
        match = self._stops.push(piece, armed=self.completion_tokens > self._options.min_tokens)
        self._let_out(match.text, out)
        if match.stopped_by is not None:
            self.finished = True
            out.finish, out.stop_reason, out.stopped_by_text = "stop", match.stopped_by, True

    def _let_out(self, text: str, out: Visible) -> None:
        if text:
            out.parts.append(text)
            self.text_length += len(text)

    def _finish(self, reason: FinishReason, tokens: tuple[int, ...], out: Visible) -> None:
        """Output the withheld text after the backend has finished the sequence."""
        if reason is FinishReason.DEADLINE:
            raise DeadlineError("the request timed out before its output was complete")
        if reason in (FinishReason.ERROR, FinishReason.ABORT):
            raise EngineError(f"choice {self.index} ended without being done: {reason.value}")
        self.finished = True
        if self._options.discard:
            out.finish = "length"
            return
        tail = self._detokenizer.flush()
        if self._parser is not None:
            self._show([*self._parser.text(tail), *self._parser.end()], out)
        elif tail:
            self._emit(tail, out)
        if out.finish is None and self._stops is not None:
            self._let_out(self._stops.flush(), out)
        out.stopped_by_text = False
        if out.finish is not None:  # the held-back text completed a stop string
            return
        out.finish = "stop" if reason is FinishReason.STOP else "length"
        reading = self._options.reading
        if reason is FinishReason.STOP and self._parser is not None and self._parser.calls:
            out.finish = "function_call" if reading is not None and reading.legacy else "tool_calls"
            self.called = tuple(self._parser.called)
        if out.finish == "stop" and tokens and tokens[-1] not in self._options.eos_ids:
            out.stop_reason = tokens[-1]


# Tally of draft tokens of a choice or a request, by position.


class DraftTally:
    """Counts of draft tokens: index 0 is the first draft token of a step."""

    __slots__ = ("accepted", "drafted")

    def __init__(self) -> None:
        self.drafted: list[int] = []
        self.accepted: list[int] = []

    def add(self, use: DraftUse) -> None:
        """Count one step."""
        self._grow(use.drafted)
        for position in range(use.drafted):
            self.drafted[position] += 1
            self.accepted[position] += position < use.accepted

    def merge(self, other: "DraftTally") -> None:
        """Add the counts of another tally."""
        self._grow(len(other.drafted))
        for position, count in enumerate(other.drafted):
            self.drafted[position] += count
            self.accepted[position] += other.accepted[position]

    def _grow(self, positions: int) -> None:
        missing = positions - len(self.drafted)
        self.drafted += [0] * missing
        self.accepted += [0] * missing


def completion_details(tallies: Sequence[DraftTally]) -> dict[str, Any]:
    """The key `completion_tokens_details` of a request's usage; empty without draft tokens.

    Accepted and rejected tokens have OpenAI's names; `prediction_positions` gives both by position.
    """
    total = DraftTally()
    for tally in tallies:
        total.merge(tally)
    if not total.drafted:
        return {}
    accepted, drafted = sum(total.accepted), sum(total.drafted)
    positions = [
        {"accepted": right, "rejected": made - right} for right, made in zip(total.accepted, total.drafted, strict=True)
    ]
    return {
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
            "prediction_positions": positions,
        }
    }
