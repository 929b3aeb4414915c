"""Hugging Face chat templates as jinja2 runs them: foreign code, and what it is offered.

The environment offers what templates of published models use: `raise_exception`, `strftime_now`, `tojson` without HTML
escapes, loop controls, trimmed blocks and `{% generation %}`. The sandbox keeps a template from Python, not from the
processor and the memory: to compile and to run one is for a process that may be lost, `template_process`. Imports
nothing of the server, so that such a process starts at once.
"""

import datetime
import json
import re
from collections.abc import Mapping
from typing import Any, Never

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

MARK = "\udfff"
"""A lone surrogate: JSON parsers refuse it, so no message holds it; a template's filters hand it on."""
SOLE_MARK = "\udffe"
"""Behind a control token of one character, which has no inside to mark."""

_NOT_ASCII = re.compile(r"[^\x00-\x7e]")


class TooLongError(Exception):
    """A template makes more text than any model can take."""


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
    return match[0] if match[0] in (MARK, SOLE_MARK) else json.dumps(match[0])[1:-1]


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def syntax_error(source: str) -> str | None:
    """The fault of a template, as far as reading it tells; nothing of it is run, nor folded."""
    environment = _environment()
    try:
        tree = environment.parse(source)
        for kind, known in ((jinja2.nodes.Filter, environment.filters), (jinja2.nodes.Test, environment.tests)):
            for node in tree.find_all(kind):
                if node.name not in known:
                    return f"there is no {kind.__name__.lower()} named {node.name!r}"
    except Exception as error:  # foreign code: also nested too deep, or a number of too many digits
        return str(error)
    return None


class TextTemplate:
    """One compiled template."""

    def __init__(self, source: str) -> None:
        """Compile. Raises: whatever jinja2 does with foreign code; constants are folded here."""
        self._template = _environment().from_string(source)

    def render(self, variables: Mapping[str, Any], most_chars: int) -> str:
        """The text.

        Raises: TooLongError; whatever the template does.
        """
        pieces, length = [], 0
        for piece in self._template.generate(variables):
            length += len(piece)
            if length > most_chars:
                raise TooLongError(f"it makes more than {most_chars} characters of them")
            pieces.append(piece)
        return "".join(pieces)
