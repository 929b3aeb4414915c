"""Chat messages to prompt text, with the conventions of Hugging Face chat templates, in a process of their own.

A template belongs to a checkpoint and is foreign code. This module prepares messages as plain JSON values and reads the
rendered text; `template_process` renders, in the processes of `template_pool`.
"""

import hashlib
import marshal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.errors import InvalidRequestError, ModelError
from serving.gateway.api.templates.control_tokens import ControlTokens, unmarked
from serving.gateway.api.templates.template_pool import TemplatePool, refusal
from serving.gateway.api.templates.template_process import TextTemplate, most_chars, syntax_error
from serving.gateway.api.tokenizer import read_json
from serving.regular_file import read_regular

Message = Mapping[str, Any]

MOST_TEMPLATE_BYTES = 1 << 20
"""Long templates have 20 kB."""
OUR_OWN = frozenset({"c7af62f004a926e02cd80f64e73183cfdf1f69376da79b20678030f8d47458fa"})
"""SHA-256 of this project's own templates, of models in `deploy/models`: their time is linear in their input."""
SHORT_BYTES = 16 << 10
"""A conversation up to this size takes our own templates less than two milliseconds, mostly a few microseconds."""
_EXAMPLE = "Example text of role"
_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True, slots=True)
class Rendering:
    """One conversation, ready for its template.

    Args:
        frame: the template's variables, in the form that `template_process` reads.
        final: text of the last message, if it is to be continued.
        moved: the frame for a template that takes instructions at the beginning only; None if they are all there.
    """

    frame: bytes
    final: str | None
    moved: bytes | None = None

    def finish(self, text: str) -> str:
        """The prompt, from the template's text. Raises: InvalidRequestError if no message can be continued."""
        return text if self.final is None else _cut_at_tag(text, self.final)


class ChatTemplate:
    """One chat template."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Read `source`; `special_tokens` (`bos_token` ...) become its variables.

        Raises: ModelError when the template does not parse.
        """
        wrong = syntax_error(source)
        if wrong is not None:
            raise ModelError(f"the chat template does not parse: {wrong}; fix chat_template.jinja")
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._pool = TemplatePool(source)
        ours = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest() in OUR_OWN
        self._here = TextTemplate(source) if ours else None
        self._late_system: bool | None = None
        """Whether it takes instructions in mid-conversation; None = not known yet."""

    def prepare(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        control: ControlTokens | None = None,
    ) -> Rendering:
        """Convert a conversation to the template's input.

        Args:
            messages: plain JSON objects with `role` and usually `content`; null fields count as absent.
            continue_final_message: leave the last message open, so that the model continues it.
            variables: further template variables; they win over special tokens.
            tools: tools that the model may call; None = there are none.
            control: separates control tokens spelled in messages and variables from the template's own; the text then
                contains marks and must be encoded by its `encode`.
        Raises: InvalidRequestError if no message can be continued.
        """
        if continue_final_message and add_generation_prompt:
            raise InvalidRequestError(
                "continue_final_message and add_generation_prompt are mutually exclusive; set one of them to false",
                param="continue_final_message",
            )
        chat = [_normalise(message) for message in messages]
        if control is not None:
            chat = [control.guard(message) for message in chat]
            variables = control.guard_variables(variables or {})
            tools = control.guard_variables({"tools": tools})["tools"]
        final = _tag_final(chat, self.source) if continue_final_message else None
        shown = list(tools) if tools else None
        reserved = {"messages": chat, "tools": shown, "documents": None, "add_generation_prompt": add_generation_prompt}
        frame = {**self._special_tokens, **(variables or {}), **reserved}
        moved = marshal.dumps({**frame, "messages": _moved(chat)}) if _has_late_system(chat) else None
        return Rendering(marshal.dumps(frame), final, moved)

    async def render(self, rendering: Rendering) -> str:
        """Render the prompt in a process; short conversations with our own templates are rendered in this one.

        Raises: InvalidRequestError when the template refuses the messages, exceeds its limits, or no message can be
            continued; OverloadedError when too many conversations wait; TimeoutError.
        """
        frame = rendering.frame
        if rendering.moved is not None and not await self._takes_late_system():
            frame = rendering.moved
        try:
            text = await self._render(frame)
        except InvalidRequestError as error:
            raise InvalidRequestError(unmarked(str(error)), param="messages") from error
        return rendering.finish(text)

    async def _render(self, frame: bytes) -> str:
        here = self._here if len(frame) <= SHORT_BYTES else None
        return await self._pool.render(frame) if here is None else _render_here(here, frame)

    async def _takes_late_system(self) -> bool:
        """Whether the template shows instructions in mid-conversation to the model; found out once, by an example."""
        if self._late_system is None:
            roles = ("user", "system", "assistant", "user")
            example = [{"role": role, "content": f"{_EXAMPLE} {role}"} for role in roles]
            frame = marshal.dumps(
                {**self._special_tokens, "messages": example, "tools": None, "add_generation_prompt": True}
            )
            try:
                self._late_system = f"{_EXAMPLE} system" in await self._render(frame)
            except InvalidRequestError:
                self._late_system = False
        return self._late_system

    def reads(self, variable: str) -> bool:
        """Whether a variable may have an effect: the template names it."""
        return variable in self.source

    async def warm(self) -> None:
        """Prepare for the first request.

        Raises: ModelError if the template does not compile.
        """
        try:
            await self._pool.warm()
        except InvalidRequestError as error:
            raise ModelError(f"the chat template does not compile ({error}); fix chat_template.jinja") from error

    def close(self) -> None:
        """Stop the processes."""
        self._pool.close()


def _render_here(template: TextTemplate, frame: bytes) -> str:
    try:
        return template.render(marshal.loads(frame), most_chars(len(frame)))
    except Exception as error:  # messages that it rejects
        raise refusal(str(error)) from error


def _normalise(message: Message) -> dict[str, Any]:
    """Drop nulls and copy reasoning text to the names that templates read."""
    plain = {key: value for key, value in message.items() if value is not None}
    reasoning = next((plain[name] for name in _REASONING_FIELDS if name in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    return plain


def _has_late_system(chat: Sequence[Message]) -> bool:
    return any(message.get("role") == "system" for message in chat[1:])


def _moved(chat: Sequence[Message]) -> list[dict[str, Any]]:
    """The conversation for templates that take instructions at the beginning only, and users' turns one at a time.

    Instructions at the beginning become one message; later ones a part of the user's turn before them, or one of their
    own, named as such. What follows does not change what is before it, so that prefixes stay cached.
    """
    moved: list[dict[str, Any]] = []
    for message in chat:
        late = message.get("role") == "system" and bool(moved) and moved[-1].get("role") != "system"
        one = {"role": "user", "content": f"[system message]\n{message.get('content', '')}"} if late else dict(message)
        last = moved[-1] if moved else None
        follows = last is not None and last.get("role") == one.get("role") and one.get("role") in ("system", "user")
        texts = (last.get("content"), one.get("content")) if last is not None and follows else ()
        if last is not None and follows and all(isinstance(text, str) for text in texts):
            last["content"] = "\n\n".join(map(str, texts))
        else:
            moved.append(one)
    return moved


def _tag_final(chat: list[dict[str, Any]], source: str) -> str:
    """Mark the end of the last message's text in place; returns the text before marking."""
    content = chat[-1].get("content") if chat else None
    if not isinstance(content, str) or "content" not in source:
        raise InvalidRequestError("continue_final_message needs a final message with text", param="messages")
    chat[-1]["content"] = content + _CONTINUE_TAG
    return content


def _cut_at_tag(text: str, final: str) -> str:
    """Cut the rendered text where the final message's own text ends."""
    if final.strip() not in text or _CONTINUE_TAG.strip() not in text:
        raise InvalidRequestError(
            "the chat template changes the final message, so it cannot be continued; leave out continue_final_message",
            param="continue_final_message",
        )
    at = text.rindex(_CONTINUE_TAG.strip())
    if text[at : at + len(_CONTINUE_TAG)] == _CONTINUE_TAG:
        return text[:at]
    return text[:at].rstrip()  # the template trimmed the message, so the space after it belongs to the template


def load_chat_template(folder: Path | str, special_tokens: Mapping[str, str]) -> ChatTemplate | None:
    """The folder's template: `chat_template.jinja`, else `chat_template` of tokenizer_config.json; None without one.

    Raises: ModelError when a template exists and is unusable.
    """
    path = Path(folder) / "chat_template.jinja"
    if path.is_file():
        try:
            source = read_regular(path, most_bytes=MOST_TEMPLATE_BYTES, within=path.parent).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"cannot read {path}: {error}; copy it again from the original checkpoint") from error
        return ChatTemplate(source, special_tokens)
    found = read_json(Path(folder) / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):  # named templates: the one called "default" is for plain chat
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = named.get("default")
    return ChatTemplate(found, special_tokens) if isinstance(found, str) else None
