"""Custom tools, which are called with a text instead of arguments.

For chat templates and tool families a custom tool is a function whose only argument is the text, so that models which
know only functions can call it. When a call is read, its arguments are converted back to the text.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hardware.nesting import parse_json
from serving.errors import InvalidRequestError
from serving.grammar.quoted import quoted_lark, quoted_regex
from serving.grammar.text import MOST_TEXT

INPUT = "input"
_HEAD = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_WHOLE = re.compile(r'(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\u(?=[0-9a-fA-F]{0,3}[^0-9a-fA-F])|\\[^u])*')
"""Complete characters of a JSON string."""
_HALF = re.compile(r"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})$")
"""An escaped surrogate whose other half has not arrived yet."""
_WORDS = {"lark": "Lark grammar", "regex": "regular expression"}


@dataclass(frozen=True, slots=True)
class InputGrammar:
    """Constraint on the input of a custom tool.

    Args:
        field: name in the request, for errors.
        syntax: lark or regex.
    """

    field: str
    syntax: str
    definition: str

    def quoted(self) -> str:
        """A Lark grammar of the inputs as they are escaped in a JSON string. Raises: GrammarError."""
        if self.syntax == "lark":
            return quoted_lark(self.definition)
        return f"start: {quoted_regex(self.definition)}"


def custom_arguments(text: str) -> str:
    """The arguments of a call with this input."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


def input_grammar(given: object, place: str) -> InputGrammar | None:
    """The `format` of a custom tool; None = any text.

    Raises: InvalidRequestError.
    """
    kind = given.get("type") if isinstance(given, dict) else None
    if given is None or kind == "text":
        return None
    grammar = given.get("grammar") if isinstance(given, dict) and kind == "grammar" else None
    if not isinstance(grammar, dict):
        message = f"'{place}.format' must be of type text, or of type grammar with a grammar"
        raise InvalidRequestError(message, param=f"{place}.format", code="invalid_value")
    syntax, definition = grammar.get("syntax"), grammar.get("definition")
    field = f"{place}.format.grammar"
    if not isinstance(syntax, str) or syntax not in _WORDS or not isinstance(definition, str):
        message = f"'{field}' must have a syntax, lark or regex, and a definition"
        raise InvalidRequestError(message, param=field, code="invalid_value")
    if len(definition) > MOST_TEXT:
        message = f"'{field}.definition' has {len(definition)} characters; at most {MOST_TEXT} are allowed"
        raise InvalidRequestError(message, param=f"{field}.definition", code="invalid_value")
    return InputGrammar(f"{field}.definition", syntax, definition)


def custom_function(given: Mapping[str, Any], grammar: InputGrammar | None) -> dict[str, Any]:
    """A custom tool as a function."""
    about = "" if grammar is None else f"Follows this {_WORDS[grammar.syntax]}:\n{grammar.definition}"
    return {
        **{key: given[key] for key in ("name", "description") if given.get(key) is not None},
        "parameters": {
            "type": "object",
            "properties": {INPUT: {"type": "string", **({"description": about} if about else {})}},
            "required": [INPUT],
        },
    }


class InputText:
    """Extracts the input of a call from its arguments as they arrive."""

    def __init__(self) -> None:
        self._coming = ""
        self._inside = self._done = False

    def push(self, piece: str) -> str:
        """Add a piece of the arguments. Returns: the text that is now certain and was not returned yet."""
        self._coming += piece
        if not self._inside:
            head = _HEAD.match(self._coming)
            if head is None:
                return ""
            self._inside, self._coming = True, self._coming[head.end() :]
        if self._done:
            return ""
        whole = _WHOLE.match(self._coming)
        assert whole is not None, "nothing matches, too"
        text, self._coming = whole[0], self._coming[whole.end() :]
        if (half := _HALF.search(text)) and self._coming[:1] in ("", "\\"):
            text, self._coming = text[: half.start(1)], half[1] + self._coming
        self._done = self._coming.startswith('"')
        return _decoded(text)

    def end(self) -> str:
        """Finish the arguments. Returns: the text of arguments that do not have the expected form."""
        if self._inside:
            return ""
        try:
            value = parse_json(self._coming)
        except ValueError:  # cut off, or no JSON
            return "" if self._coming.lstrip().startswith("{") else self._coming
        texts = [one for one in value.values() if isinstance(one, str)] if isinstance(value, dict) else []
        own = value.get(INPUT) if isinstance(value, dict) else None
        return own if isinstance(own, str) else texts[0] if len(texts) == 1 else self._coming


def _decoded(text: str) -> str:
    """A piece of a JSON string as text."""
    if "\\" not in text:
        return text
    try:
        plain: str = json.loads(f'"{text}"', strict=False)
    except ValueError:  # an escape that JSON does not have
        return text
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
