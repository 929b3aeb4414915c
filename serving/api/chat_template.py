"""Chat messages to prompt text, with the conventions of Hugging Face chat templates, in a sandbox.

A template comes with a checkpoint and is foreign code: it runs in jinja2's immutable sandbox and sees plain JSON values
only. The environment offers what templates of published models use: `raise_exception`, `strftime_now`, `tojson` without
HTML escapes, loop controls, trimmed blocks, `{% generation %}` and the special tokens by name.
"""

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Never

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from serving.api.control_tokens import ControlTokens, unmarked
from serving.api.tokenizer import read_json
from serving.errors import InvalidRequestError, ModelError
from serving.regular_file import read_regular

Message = Mapping[str, Any]

MOST_TEMPLATE_BYTES = 1 << 20
"""Long ones have 20 kB."""
_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_NOT_ASCII = re.compile(r"[^\x00-\x7e]")
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks text for training; when serving it is just its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 reads a plain class attribute

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Replace the block by its body."""
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _raise_exception(message: str) -> Never:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return _NOT_ASCII.sub(_escape, text) if ensure_ascii else text


def _escape(match: re.Match[str]) -> str:
    """JSON's escape of a character, except for marks, which must stay what they are."""
    return match[0] if unmarked(match[0]) == "" else json.dumps(match[0])[1:-1]


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class ChatTemplate:
    """One compiled chat template."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Compile `source`; `special_tokens` (`bos_token` ...) become its variables.

        Raises: ModelError when the template does not parse.
        """
        try:
            self._template = _environment().from_string(source)
        except Exception as error:  # foreign code: what Jinja lets pass, Python may find too deep to compile
            raise ModelError(f"the chat template does not parse: {error}; fix chat_template.jinja") from error
        self.source = source
        self._special_tokens = dict(special_tokens)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
        control: ControlTokens | None = None,
    ) -> str:
        """Prompt text of a conversation.

        Args:
            messages: plain JSON objects with `role` and usually `content`; null fields count as absent.
            continue_final_message: leave the last message open, so that the model goes on with it.
            variables: further template variables; they win over special tokens.
            control: keeps what messages and variables spell apart from the template's own control tokens; the text
                then holds marks and is for its `encode`.
        Raises: InvalidRequestError when the template refuses the messages, or nothing can be continued.
        """
        if continue_final_message and add_generation_prompt:
            raise InvalidRequestError(
                "continue_final_message and add_generation_prompt exclude each other; set one of them to false",
                param="continue_final_message",
            )
        chat = [_normalise(message) for message in messages]
        if control is not None:
            chat = [control.guard(message) for message in chat]
            variables = control.guard_variables(variables or {})
        final = _tag_final(chat, self.source) if continue_final_message else None
        reserved = {"messages": chat, "tools": None, "documents": None, "add_generation_prompt": add_generation_prompt}
        try:
            text = self._template.render({**self._special_tokens, **(variables or {}), **reserved})
        except Exception as error:  # the template is foreign code: whatever it does wrong, these messages triggered it
            message = unmarked(f"the chat template refused the messages: {error}")
            raise InvalidRequestError(message, param="messages") from error
        return text if final is None else _cut_at_tag(text, final)


def _normalise(message: Message) -> dict[str, Any]:
    """Drop nulls and give reasoning text under the names that templates read."""
    plain = {key: value for key, value in message.items() if value is not None}
    reasoning = next((plain[name] for name in _REASONING_FIELDS if name in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    return plain


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
    return text[:at].rstrip()  # the template trimmed the message, so its trailing space is not ours either


def load_chat_template(folder: Path | str, special_tokens: Mapping[str, str]) -> ChatTemplate | None:
    """The folder's template: `chat_template.jinja`, else `chat_template` of tokenizer_config.json; None without one.

    Raises: ModelError when a template is there and unusable.
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
