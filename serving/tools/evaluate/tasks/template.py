"""From a question to its text, choices and answer, by the rules of the lm-evaluation-harness.

A string is a column's name if the question has that column, else a jinja2 template. A rendered run of digits is an
index into the choices, a rendered list is a list.
"""

import ast
import re
from typing import Any

from jinja2 import StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from serving.errors import ConfigError
from serving.tools.evaluate.tasks.dataset import Doc
from serving.tools.evaluate.tasks.task_file import Template


def _regex_replace(text: str, pattern: str, repl: str, count: int = 0) -> str:
    return re.sub(pattern, repl, text, count=count)


_DIGITS = 18
"""A longer run of digits is no index."""
_JINJA = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
_JINJA.filters["regex_replace"] = _regex_replace


def render(template: str, doc: Doc) -> str:
    """The text of a template for one question.

    Raises: ConfigError if the template is wrong or names a column that the question does not have.
    Effects: none; templates run in a sandbox.
    """
    try:
        return _JINJA.from_string(template).render(**doc)
    except Exception as error:  # an expression of a template may raise anything
        raise ConfigError(f"the template {template!r} cannot be rendered: {error}") from None


def text_of(template: Template, doc: Doc) -> str | int:
    """The question's text, or an index if the task puts its choices before a common ending.

    Raises: ConfigError if it is neither.
    """
    return _text_or_index(_column_or_rendered(template, doc), "doc_to_text")


def target_of(template: Template, doc: Doc) -> str | int | list[Any]:
    """The answer: an index into the choices, a choice itself, or a list of indices.

    Raises: ConfigError if it is none of them.
    """
    value = _column_or_rendered(template, doc)
    rendered = isinstance(template, str) and template not in doc
    if rendered and isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        value = _literal(value)
    if isinstance(value, list):
        return value
    return _text_or_index(value, "doc_to_target")


def choices_of(template: Template, doc: Doc) -> list[str]:
    """The choices.

    Raises: ConfigError if they are not a list of two texts at least.
    """
    value: Any = template
    if isinstance(template, dict):
        value = list(template.values())
    elif isinstance(template, str):
        value = doc[template] if template in doc else _literal(render(template, doc))
    if not isinstance(value, list) or len(value) < 2 or not all(isinstance(choice, str) and choice for choice in value):
        raise ConfigError(f"doc_to_choice gives {value!r}, which is not a list of at least two strings")
    return value


def _column_or_rendered(template: Template, doc: Doc) -> Any:  # noqa: ANN401
    """A constant, a column as it is, or a rendered template with digits as a number."""
    if not isinstance(template, str):
        return template
    if template in doc:
        return doc[template]
    text = render(template, doc)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else text


def _text_or_index(value: Any, key: str) -> str | int:  # noqa: ANN401
    if not isinstance(value, str | int):
        raise ConfigError(f"{key} gives {value!r}, which is neither a string nor an index")
    return value


def _literal(text: str) -> Any:  # noqa: ANN401
    """A Python literal, or the text itself if it is none."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return text
