"""Hugging Face chat templates in jinja2: foreign code, and the functions that it may use.

The environment has the functions that templates of published models use: `raise_exception`, `strftime_now`, `tojson`
without HTML escapes, loop controls, trimmed blocks and `{% generation %}`. The sandbox denies a template access to
Python, but does not limit its CPU time and memory: templates are compiled and run in a process that may be killed,
`template_process`. Imports nothing of the server, so that such a process starts quickly.
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
"""A lone surrogate: JSON parsers refuse it, so no message contains it; a template's filters preserve it."""
SOLE_MARK = "\udffe"
"""Follows a control token of one character, which cannot be marked inside."""

_NOT_ASCII = re.compile(r"[^\x00-\x7e]")


class TooLongError(Exception):
    """A template generates more text than any model can process."""


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks text for training; in serving it is replaced by its body."""

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
    """JSON's escape of a character, except for marks, which are kept."""
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
    """Syntax error of a template, found by parsing alone: no code of it is run, no constants are folded."""
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
        """Compile, which folds constants. Raises: any exception that jinja2 raises for foreign code."""
        self._template = _environment().from_string(source)

    def render(self, variables: Mapping[str, Any], most_chars: int) -> str:
        """The rendered text.

        Raises: TooLongError; any exception of the template.
        """
        pieces, length = [], 0
        for piece in self._template.generate(variables):
            length += len(piece)
            if length > most_chars:
                raise TooLongError(f"it turns them into more than {most_chars} characters of them")
            pieces.append(piece)
        return "".join(pieces)
