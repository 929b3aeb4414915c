"""Conversations between people and assistants, in the form of ShareGPT: a JSON list (or JSON lines).

[{"id": "...", "conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}, ...]}, ...]

OpenAI's `messages` with `role` and `content` are understood, too. Entries without a question and a response are
omitted. Entries keep the file's order.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from loadgen.errors import TraceFormatError
from loadgen.plan import Conversation, Prompt, PromptMessage, Role, Turn, if_changed
from loadgen.workload.datasets.fit import Fit
from loadgen.workload.datasets.json_stream import entries
from loadgen.workload.datasets.measure import Measure
from loadgen.workload.distributions import Distribution, Fixed
from loadgen.workload.lengths import Lengths

_ROLES = {
    "human": Role.USER,
    "user": Role.USER,
    "gpt": Role.ASSISTANT,
    "assistant": Role.ASSISTANT,
    "chatgpt": Role.ASSISTANT,
    "bing": Role.ASSISTANT,
    "bard": Role.ASSISTANT,
    "system": Role.SYSTEM,
}
_NO_PAUSE = Fixed(0.0)


@dataclass(frozen=True)
class ShareGpt:
    """Workload of recorded conversations: their questions become prompts, their responses only set the output lengths.

    Attributes:
        measure: counts questions and recorded responses.
        output_tokens: length of each response; None = that of the recorded one.
        whole: send every question of a conversation (with the server's own responses as history), not only the first.
        think_s: pause before each turn but the first [s]; below 0 counts as 0.
        fit: texts cannot be scaled; conversations end before a turn that does not fit the model, and are omitted if
            that is the first one.
    """

    path: Path
    measure: Measure = field(default_factory=Measure)
    output_tokens: Lengths | None = None
    whole: bool = False
    think_s: Distribution = _NO_PAUSE
    fit: Fit = field(default_factory=Fit)

    def conversations(self, rng: np.random.Generator) -> Iterator[Conversation]:
        """See `Workload`.

        Raises: UsageError if the file cannot be read; TraceFormatError naming the line that is no conversation;
            ServerError if a request to the server's tokenizer fails.
        """
        for line, entry in entries(self.path):
            pairs = list(_pairs(_said(self.path, line, entry)))
            wanted = pairs if self.whole else pairs[:1]
            turns = self._turns(wanted, rng)
            if turns:
                self.fit.tally.taken += 1
                yield Conversation(turns=turns, turns_left_out=len(wanted) - len(turns))
            else:
                self.fit.tally.left_out += 1

    def _turns(self, pairs: list[tuple[Prompt, str, str]], rng: np.random.Generator) -> list[Turn]:
        """Questions with the lengths of their responses, as far as they fit."""
        turns: list[Turn] = []
        used = 0
        for prompt, question, answer in pairs:
            asked = self.output_tokens.asked(rng) if self.output_tokens else self.measure.tokens(answer)
            output_tokens = max(1, asked)
            think_s = max(0.0, self.think_s.value(rng)) if turns else 0.0
            input_tokens = self.measure.tokens(question)
            used += input_tokens + output_tokens
            if not self.fit.fits(used):
                break
            turns.append(
                Turn(
                    prompt=prompt,
                    output_tokens=output_tokens,
                    input_tokens=input_tokens if self.measure.exact else None,
                    asked_output_tokens=if_changed(asked, output_tokens),
                    think_s=think_s,
                )
            )
        return turns


def _pairs(said: list[tuple[Role | None, str]]) -> Iterator[tuple[Prompt, str, str]]:
    """Prompt, its text and the recorded response, as long as people and assistants take turns.

    Assistant messages before the first question are dropped: such entries are cut out of longer conversations. A system
    message is sent with the first question.
    """
    system = "\n".join(text for role, text in said if role is Role.SYSTEM)
    rest = [(role, text) for role, text in said if role is not Role.SYSTEM]
    while rest and rest[0][0] is not Role.USER:
        del rest[0]
    for (asker, question), (answerer, answer) in zip(rest[::2], rest[1::2], strict=False):
        if asker is not Role.USER or answerer is not Role.ASSISTANT or not question.strip():
            return
        if system:
            prompt: Prompt = [PromptMessage(Role.SYSTEM, system), PromptMessage(Role.USER, question)]
            yield prompt, f"{system}\n{question}", answer
            system = ""
        else:
            yield question, question, answer


def _said(path: Path, line: int, entry: object) -> list[tuple[Role | None, str]]:
    """Speaker and text of each message; an unknown speaker is None.

    Raises: TraceFormatError if the entry is no conversation.
    """
    spoken = entry.get("conversations", entry.get("messages")) if isinstance(entry, dict) else None
    if not isinstance(spoken, list) or not all(isinstance(one, dict) for one in spoken):
        raise TraceFormatError(f"{path}:{line}: no list of conversations with from and value (or role and content)")
    found = []
    for one in spoken:
        role, text = one.get("from", one.get("role")), one.get("value", one.get("content"))
        found.append((_ROLES.get(str(role).lower()), text if isinstance(text, str) else ""))
    return found
