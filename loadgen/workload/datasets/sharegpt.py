"""Conversations between people and assistants, in the form of ShareGPT: a JSON list (or JSON lines).

[{"id": "...", "conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}, ...]}, ...]

OpenAI's `messages` with `role` and `content` are understood, too. Entries without a question and a response are
omitted. Entries keep the file's order.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.errors import TraceFormatError, UsageError
from loadgen.json_text import JsonTooDeep, check_depth
from loadgen.plan import Conversation, Prompt, PromptMessage, Role, Turn, if_changed
from loadgen.regular_file import check_regular
from loadgen.workload.datasets.fit import Fit, Measure
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


# Read a long JSON list one entry at a time: data sets of conversations are lists of hundreds of megabytes.

_FIRST_READ = 1 << 20
_LONGEST_ENTRY = 1 << 26
"""Characters. An entry without an end within this is taken as broken, without reading to the end of the file."""
_BETWEEN = " \t\r\n,"
_NEWLINE = "\n"


def entries(
    path: Path, *, first_read: int = _FIRST_READ, longest_entry: int = _LONGEST_ENTRY
) -> Iterator[tuple[int, Any]]:
    """The entries of a JSON list, or of a file with one JSON value after another, with the line on which each starts.

    Args:
        first_read, longest_entry: characters that are read at once, and that an entry has at most.
    Raises: UsageError if the file cannot be read; TraceFormatError naming the line where it is no JSON.
    Effects: holds one entry and about a megabyte at a time.
    """
    try:
        check_regular(path)
        with path.open(encoding="utf-8-sig") as file:
            yield from _entries(path, file.read, first_read, longest_entry)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise TraceFormatError(f"{path}: not UTF-8 ({error.reason} at byte {error.start} of a block)") from None


def _entries(path: Path, read: Callable[[int], str], first_read: int, longest_entry: int) -> Iterator[tuple[int, Any]]:
    """`entries` on an opened file."""
    decode = json.JSONDecoder().raw_decode
    buffer, at, line = read(first_read), 0, 1
    at = _skip(buffer, 0, _BETWEEN)
    in_list = buffer.startswith("[", at)
    at += in_list
    size, ended = first_read, False
    while True:
        at = _skip(buffer, at, _BETWEEN)
        if at == len(buffer) and not ended:
            line += buffer.count("\n")
            buffer, at, size = read(first_read), 0, first_read
            ended = not buffer
            continue
        if at == len(buffer) and not in_list:
            return
        if in_list and buffer.startswith("]", at):
            return
        try:
            value, end = decode(buffer, at)
            check_depth(buffer[at:end])
        except (JsonTooDeep, RecursionError):
            raise TraceFormatError(f"{path}:{line + buffer.count(_NEWLINE, 0, at)}: {JsonTooDeep()}") from None
        except json.JSONDecodeError as error:
            more = "" if ended or len(buffer) - at > longest_entry else read(size)
            if not more:
                raise TraceFormatError(f"{path}:{line + error.lineno - 1}: not JSON ({error.msg})") from None
            # Twice as much each time, so that one long entry is not parsed again for every megabyte of it.
            line += buffer.count("\n", 0, at)
            buffer, at, size = buffer[at:] + more, 0, size * 2
            continue
        except ValueError as error:  # a number of thousands of digits
            raise TraceFormatError(f"{path}:{line + buffer.count(_NEWLINE, 0, at)}: not JSON ({error})") from None
        yield line + buffer.count("\n", 0, at), value
        at = end


def _skip(text: str, at: int, what: str) -> int:
    """The first place from `at` on that holds none of `what`."""
    while at < len(text) and text[at] in what:
        at += 1
    return at
