"""Interprets the bytes of a response: which were content, when, how many tokens; pure.

A *content chunk* is an event with non-empty text, reasoning, refusal or tool call. The first one is the first token:
an opening chunk that only names the role is none, and neither is a chunk with empty text. vLLM's own benchmark differs
in two corner cases: in the completions protocol it takes the first chunk with a choice in it even if its text is empty,
and in chat an empty delta without a role. With these rules a server that sends an empty chunk immediately would look
fast; with ours it does not. Tokens without text (half of a character, held-back stop strings) are counted with the
next content chunk.
"""

from array import array

from loadgen.client.reply import (
    SHORT_BYTES,
    Reply,
    ReplyChoice,
    ReplyUsage,
    Said,
    decode_reply,
    decode_short,
    error_text,
    times_in_seconds,
)
from loadgen.errors import NOT_JSON


class AnswerReader:
    """Reads one answer, from the first byte to the last.

    Attributes:
        times: arrival of each content chunk [s]. tokens: per chunk, if the server reports them.
        tokens_known: every content chunk had its token count.
        first_answer_s: first content that is not reasoning.
        text: pieces of the (first) answer without reasoning.
        usage, server_times, finish_reason: the latest ones received.
        done: the end mark `[DONE]` was received. ended: every choice has a finish reason.
        stream_error, malformed: text of an error object; text that could not be parsed. Empty if there was none.
        empty: no JSON object was received.
    """

    __slots__ = (
        "_carried",
        "_counted",
        "_finished",
        "_other_chars",
        "_pieces",
        "_seen",
        "_splitter",
        "_steady",
        "_streamed",
        "done",
        "empty",
        "finish_reason",
        "first_answer_s",
        "last_s",
        "malformed",
        "server_times",
        "stream_error",
        "text",
        "times",
        "tokens",
        "tokens_known",
        "usage",
    )

    def __init__(self, *, streamed: bool | None) -> None:
        """Empty parse state.

        Args:
            streamed: whether the body is a stream of events; None to detect it from the first bytes.
        """
        self.times = array("d")
        self.tokens = array("i")
        self.tokens_known = True
        self.first_answer_s: float | None = None
        self.text: list[str] = []
        self.usage: ReplyUsage | None = None
        self.server_times: dict[str, float] = {}
        self.finish_reason = ""
        self.done = False
        self.stream_error = ""
        self.malformed = ""
        self.empty = True
        self.last_s = 0.0
        self._streamed = streamed
        self._splitter = SseSplitter()
        self._pieces: list[bytes] = []  # of an answer that is no stream
        self._seen: set[int] = set()
        self._finished: set[int] = set()
        self._counted = 0  # completion tokens according to the last running usage
        self._other_chars = 0  # of reasoning, and of further answers
        self._steady = False  # only times and text can change with one more chunk of text
        self._carried = 0  # tokens without text, not yet counted with a chunk

    @property
    def content_chunks(self) -> int:
        """Content chunks so far."""
        return len(self.times)

    @property
    def content_chars(self) -> int:
        """Characters of all generated content."""
        return sum(map(len, self.text)) + self._other_chars

    @property
    def ended(self) -> bool:
        """Whether every choice seen has a finish reason, and there is at least one."""
        return bool(self._seen) and self._seen == self._finished

    @property
    def is_stream(self) -> bool:
        """Whether the body is (or appears to be) a stream of events."""
        return bool(self._streamed)

    def feed(self, times: list[float], parts: list[bytes]) -> None:
        """Interpret the next parts of the body.

        Args:
            times: arrival of each part [s]. parts: bytes, cut anywhere.
        """
        if self._streamed is None and parts:
            self._streamed = b"".join(parts).lstrip()[:1] in (b"d", b":", b"e", b"i", b"r")
        if not self._streamed:
            self._pieces += parts
            if times:
                self.last_s = times[-1]
            return
        splitter = self._splitter
        for now_s, part in zip(times, parts, strict=True):
            # Nearly every part is exactly one event of one line; then its data is a slice.
            if (
                splitter.idle
                and part.startswith(b"data: ")
                and part.endswith(b"\n\n")
                and part.find(b"\n") == len(part) - 2
            ):
                try:
                    reply = decode_short(part[6:]) if len(part) <= SHORT_BYTES else decode_reply(part[6:])
                except NOT_JSON:
                    pass  # several events between CRs, the end mark, or nonsense
                else:
                    if not (self._steady and self._more_text(now_s, reply)):
                        self._reply(now_s, reply)
                    continue
            for data in splitter.feed(part):
                self._event(now_s, data)
        if times:
            self.last_s = times[-1]

    def _more_text(self, now_s: float, reply: Reply) -> bool:
        """Take a chunk that is like most: text of the only choice and no other field. False if it is not.

        Does what `_reply` would do, at half the cost.
        """
        choices = reply.choices
        if not choices or len(choices) != 1 or reply.usage is not None or reply.error is not None or reply.metrics:
            return False
        choice = choices[0]
        if choice.finish_reason is not None or choice.index:
            return False
        said = choice.delta
        if said is None:
            content = choice.text
        elif (
            said.reasoning is None
            and said.reasoning_content is None
            and said.refusal is None
            and said.tool_calls is None
            and said.function_call is None
        ):
            content = said.content
        else:
            return False
        if not content:
            return False
        self.times.append(now_s)
        self.text.append(content)
        return True

    def finish(self, *, clean: bool) -> None:
        """Interpret the end of the body.

        Args:
            clean: it ended as HTTP requires; otherwise it was cut off, and a partial event at its end is expected.
        """
        if self._streamed:
            for data in self._splitter.finish() if clean else []:
                self._event(self.last_s, data)
        elif clean:
            self._whole(b"".join(self._pieces))

    def body(self) -> bytes:
        """Body of a response that is no stream."""
        return b"".join(self._pieces)

    def _whole(self, body: bytes) -> None:
        """A response in one piece: one content chunk, at its last byte."""
        self._event(self.last_s, body)
        if not self.malformed and not self.stream_error:
            self.done = True
            if self.times and self.usage is not None and self.usage.completion_tokens is not None:
                self.tokens = array("i", [self.usage.completion_tokens])
                self.tokens_known = True

    def _event(self, now_s: float, data: bytes) -> None:
        try:
            reply = decode_reply(data)
        except NOT_JSON as error:
            if data.strip() == b"[DONE]":
                self.done = True
            elif data.strip():
                self.malformed = self.malformed or f"{error}: {data[:80].decode(errors='replace')}"
        else:
            self._reply(now_s, reply)

    def _reply(self, now_s: float, reply: Reply) -> None:
        self.empty = False
        choices = reply.choices
        if choices:
            self._choices(now_s, choices, reply.usage)
        if reply.usage is not None:
            self.usage = reply.usage
        if reply.metrics:
            self.server_times.update(times_in_seconds(reply.metrics))
        if reply.error is not None or choices is None:
            self._error(reply)

    def _error(self, reply: Reply) -> None:
        error = reply.error if reply.error is not None else reply.message
        if error is not None:
            self.stream_error = self.stream_error or error_text(error) or "an error without text"
        elif reply.usage is None and reply.metrics is None:
            self.malformed = self.malformed or "an object without choices, usage or error"

    def _choices(self, now_s: float, choices: list[ReplyChoice], usage: ReplyUsage | None) -> None:
        content = answered = False
        tokens: int | None = None
        for choice in choices:
            self._seen.add(choice.index)
            said = choice.delta or choice.message
            if said is not None:
                spoke, answers = self._said(said, choice.index)
                content |= spoke
                answered |= answers
            elif choice.text:
                content = answered = True
                self._keep(choice.text, choice.index)
            if choice.finish_reason:
                self.finish_reason = choice.finish_reason
                self._finished.add(choice.index)
            if choice.token_ids is not None:
                tokens = (tokens or 0) + len(choice.token_ids)
        if tokens is None and usage is not None and usage.completion_tokens is not None and len(self._seen) == 1:
            tokens = usage.completion_tokens - self._counted  # running usage is per choice, so of use for one only
            self._counted = usage.completion_tokens
        self._carried += tokens or 0
        if content:
            self.times.append(now_s)
            self.tokens_known &= tokens is not None
            self.tokens.append(self._carried)
            self._carried = 0
            if answered and self.first_answer_s is None:
                self.first_answer_s = now_s
            self._steady = self.first_answer_s is not None and not self.tokens_known

    def _said(self, said: Said, index: int) -> tuple[bool, bool]:
        """Count a delta or message.

        Returns: whether it carries content, and whether that is more than reasoning.
        """
        answer = said.content or said.refusal
        reasoning = said.reasoning or said.reasoning_content
        if answer:
            self._keep(answer, index)
        if reasoning:
            self._other_chars += len(reasoning)
        answers = bool(answer or said.tool_calls or said.function_call)
        return answers or bool(reasoning), answers

    def _keep(self, answer: str, index: int) -> None:
        """Keep the first choice, and count the others."""
        if index:
            self._other_chars += len(answer)
        else:
            self.text.append(answer)


# Parser of server-sent events, independent of how the network splits them.
#
# Follows the WHATWG text: lines end with LF, CR or CRLF; an event ends with an empty line; `data` lines of one event
# are joined by LF; comments and other fields (`event`, `id`, `retry`) are ignored.

_BOM = b"\xef\xbb\xbf"


class SseSplitter:
    """Takes bytes in any portions and returns the data of each event that they complete.

    Attributes:
        idle: no partial event is buffered, so a portion that is exactly one event may bypass this class.
    """

    __slots__ = ("_at_start", "_data", "_pieces", "_skip_lf", "idle")

    def __init__(self) -> None:
        self.idle = True
        self._pieces: list[bytes] = []  # of a line whose end has not come
        self._data: list[bytes] = []  # data lines of the event in progress
        self._skip_lf = False  # the last byte was a CR: an LF right after it belongs to the same line end
        self._at_start = True

    def feed(self, portion: bytes) -> list[bytes]:
        """Data of the events that end in this portion."""
        if self._skip_lf and portion:
            self._skip_lf = False
            if portion.startswith(b"\n"):
                portion = portion[1:]
        if b"\n" not in portion and b"\r" not in portion:
            if portion:
                self._pieces.append(portion)  # joined once its end has arrived: long lines in small pieces stay cheap
                self.idle = False
            return []
        events: list[bytes] = []
        self._pieces.append(portion)
        lines = b"".join(self._pieces).splitlines(keepends=True)
        self._pieces.clear()
        if not lines[-1].endswith((b"\n", b"\r")):
            self._pieces.append(lines.pop())
        elif lines[-1].endswith(b"\r"):
            self._skip_lf = True
        for line in lines:
            self._line(line.rstrip(b"\r\n"), events)
        self.idle = not (self._pieces or self._data or self._skip_lf)
        return events

    def finish(self) -> list[bytes]:
        """Data of an event that lacks its empty line at the end of the stream; some servers forget it."""
        events: list[bytes] = []
        if self._pieces:
            self._line(b"".join(self._pieces), events)
        self._line(b"", events)
        self._pieces.clear()
        self.idle = True
        return events

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
        elif line.startswith(b"data:"):
            self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif line == b"data":
            self._data.append(b"")
