"""Prompts of one's own, as JSON lines: the `custom` data set of `vllm bench serve`.

{"prompt": "What is a load generator?", "output_tokens": 64}
{"messages": [{"role": "user", "content": "..."}]}
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from loadgen.errors import TraceFormatError
from loadgen.plan import Conversation, Prompt, PromptMessage, Turn, if_changed
from loadgen.trace.lines import json_lines
from loadgen.workload.datasets.fit import Fit, Measure
from loadgen.workload.lengths import Lengths


class _Line(msgspec.Struct):
    """One prompt: text or token ids, or chat messages."""

    prompt: str | list[int] | None = None
    messages: list[PromptMessage] | None = None
    output_tokens: int | None = None


@dataclass(frozen=True)
class Custom:
    """Workload of given prompts, one request each. Finite.

    Attributes:
        output_tokens: length of responses for lines without one.
        measure: counts the prompts' tokens. fit: leaves out what does not fit the model.
    """

    path: Path
    output_tokens: Lengths
    measure: Measure = field(default_factory=Measure)
    fit: Fit = field(default_factory=Fit)

    def conversations(self, rng: np.random.Generator) -> Iterator[Conversation]:
        """See `Workload`.

        Raises: UsageError if the file cannot be read; TraceFormatError naming the line that is no prompt; ServerError
            if a request to the server's tokenizer fails.
        """
        for number, line in json_lines(self.path, _Line, 'a prompt ({"prompt": ..., "output_tokens": ...})'):
            prompt, input_tokens, exact = self._prompt(number, line)
            if line.output_tokens is not None and line.output_tokens < 1:
                raise TraceFormatError(f"{self.path}:{number}: output_tokens must be above 0")
            asked = line.output_tokens or self.output_tokens.asked(rng)
            output_tokens = line.output_tokens or self.output_tokens.fitted(asked)
            if not self.fit.fits(input_tokens + output_tokens):
                self.fit.tally.left_out += 1
                continue
            self.fit.tally.taken += 1
            known = input_tokens if exact else None
            turn = Turn(
                prompt=prompt,
                output_tokens=output_tokens,
                input_tokens=known,
                asked_output_tokens=if_changed(asked, output_tokens),
            )
            yield Conversation(turns=[turn])

    def _prompt(self, number: int, line: _Line) -> tuple[Prompt, int, bool]:
        """The prompt, its tokens, and whether they are certain.

        Raises: TraceFormatError if there is none, or more than one.
        """
        if (line.prompt is None) == (line.messages is None) or not (line.prompt or line.messages):
            raise TraceFormatError(f"{self.path}:{number}: needs either a prompt or messages")
        if isinstance(line.prompt, str):
            return line.prompt, self.measure.tokens(line.prompt), self.measure.exact
        if line.prompt is not None:
            return [*line.prompt], len(line.prompt), True
        messages = line.messages or []
        text = "\n".join(message.content for message in messages)
        return [*messages], self.measure.tokens(text), self.measure.exact
