"""The questions of a task as pairs of context and continuation, few-shot examples included.

Two forms, as in the lm-evaluation-harness. Usually a question's text is the context and its choices are the
continuations. Where `doc_to_text` gives an index, the choices are the contexts and the target is the continuation of
each (sentences with a gap).
"""

import ast
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hardware.nesting import parse_json
from hardware.regular_file import read_regular_text
from serving.errors import ConfigError
from serving.tools.evaluate.intervals import mean_and_error
from serving.tools.evaluate.tasks.task_file import TaskFile, Template

# The questions of a task: one JSON object per line, or a JSON list, in local files.

Doc = Mapping[str, Any]


def read_split(patterns: Sequence[str], beside: Path) -> list[Doc]:
    """All questions of one split, in order.

    Args:
        patterns: file names or glob patterns, absolute or relative to `beside`.
        beside: folder of the task file.
    Raises: ConfigError if a name matches no file, a line is not a JSON object, or there is no question at all.
    Effects: reads files.
    """
    docs: list[Doc] = []
    for pattern in patterns:
        files = _files(pattern, beside)
        if not files:
            raise ConfigError(f"no data file {beside / pattern}: the task names it in `data_files`")
        for file in files:
            docs += _read(file)
    if not docs:
        raise ConfigError(f"{', '.join(patterns)} in {beside} holds no question")
    return docs


def _files(pattern: str, beside: Path) -> list[Path]:
    path = beside / pattern  # an absolute pattern stays what it is
    if path.is_file():
        return [path]
    return sorted(file for file in path.parent.glob(path.name) if file.is_file()) if path.name else []


def _read(path: Path) -> list[Doc]:
    try:
        content = read_regular_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    if content.lstrip().startswith("["):
        rows = [(1, value) for value in _parsed(content, path, 1, list)]
    else:
        lines = ((number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip())
        rows = [(number, _parsed(line, path, number, dict)) for number, line in lines]
    for number, row in rows:
        if not isinstance(row, dict):
            raise ConfigError(f"{path}, line {number}: a question must be a JSON object, not {row!r}")
    return [row for _, row in rows]


def _parsed(text: str, path: Path, line: int, kind: type) -> Any:  # noqa: ANN401
    try:
        value = parse_json(text)
    except ValueError as error:
        raise ConfigError(f"{path}, line {line} is not JSON: {error}") from None
    if not isinstance(value, kind):
        raise ConfigError(f"{path}, line {line}: a question must be a JSON object, not {value!r}")
    return value


# The questions of a task as pairs of context and continuation, few-shot examples included.

_SHOT_SEED = 1234
"""The harness's default, so that the same examples are drawn."""


@dataclass(frozen=True, slots=True)
class TaskQuestion:
    """One question.

    Args:
        pairs: (context, continuation) of each choice.
        choices: as the task gives them; their lengths normalise `acc_norm`.
        gold: right choices; empty when the data's answer is none of the choices, which no model can get right.
    """

    pairs: tuple[tuple[str, str], ...]
    choices: tuple[str, ...]
    gold: frozenset[int]


def read_questions(task: TaskFile, *, num_fewshot: int | None = None, limit: int | None = None) -> list[TaskQuestion]:
    """All questions of a task.

    Args:
        num_fewshot: instead of the task's own number. limit: only this many questions, the first ones.
    Raises: ConfigError if data is missing, a question does not fit the task's templates, or none has an answer.
    Effects: reads files.
    """
    asked = _docs(task, task.eval_split)[:limit]
    shots = _Shots(task, task.num_fewshot if num_fewshot is None else num_fewshot)
    questions = []
    for number, doc in enumerate(asked, 1):
        try:
            questions.append(_question(task, doc, shots))
        except ConfigError as error:
            raise ConfigError(f"{task.path}, question {number} of {task.eval_split!r}: {error}") from None
    if not any(question.gold for question in questions):
        raise ConfigError(f"{task.path}: of all questions, no answer is among its choices: correct `doc_to_target`")
    return questions


def _docs(task: TaskFile, split: str) -> list[Doc]:
    if split not in task.data_files:
        raise ConfigError(f"{task.path}: `data_files` has no split {split!r}, only {', '.join(task.data_files)}")
    return read_split(task.data_files[split], task.path.parent)


def _question(task: TaskFile, doc: Doc, shots: "_Shots") -> TaskQuestion:
    text, choices = text_of(task.doc_to_text, doc), choices_of(task.doc_to_choice, doc)
    target = target_of(task.doc_to_target, doc)
    before = (render(task.description, doc) if task.description else "") + shots.before(doc)
    if isinstance(text, int):
        pairs = tuple((before + choice, f"{task.target_delimiter}{target}") for choice in choices)
        return TaskQuestion(pairs, tuple(choices), _gold(text, choices))
    pairs = tuple((before + text, task.target_delimiter + choice) for choice in choices)
    return TaskQuestion(pairs, tuple(choices), _gold(target, choices))


def _gold(target: object, choices: Sequence[str]) -> frozenset[int]:
    targets = target if isinstance(target, list) else [target]
    found = [choices.index(one) if isinstance(one, str) and one in choices else one for one in targets]
    return frozenset(one for one in found if isinstance(one, int) and 0 <= one < len(choices))


class _Shots:
    """Draws solved examples, one set for each question, in the harness's order of random numbers."""

    def __init__(self, task: TaskFile, count: int) -> None:
        self._task = task
        self._count = count
        self._rng = random.Random(_SHOT_SEED)
        self._docs: Sequence[Doc] = ()
        # One more, in case that a question is drawn as its own example. Like the harness, this compares the keys.
        self._spare = int(task.splits.get("fewshot_split") == task.splits.get("test_split"))
        if count:
            self._docs = task.samples or _docs(task, task.shot_split)
            if count + self._spare > len(self._docs):
                raise ConfigError(
                    f"{task.path}: {count} examples for each question are requested, but there are only "
                    f"{len(self._docs)}"
                )

    def before(self, doc: Doc) -> str:
        """The examples for one question, each with its answer."""
        if not self._count:
            return ""
        wanted = self._count + self._spare
        drawn = self._docs[:wanted] if self._task.sampler == "first_n" else self._rng.sample(self._docs, wanted)
        return "".join([self._solved(one) for one in drawn if one != doc][: self._count])

    def _solved(self, doc: Doc) -> str:
        task = self._task
        text, target = text_of(task.doc_to_text, doc), target_of(task.doc_to_target, doc)
        choices = choices_of(task.doc_to_choice, doc)
        shown = _pick(choices, text) if isinstance(text, int) else text
        first = target[0] if isinstance(target, list) and target else target
        answer = _pick(choices, first) if isinstance(first, int) and not isinstance(target, list) else str(first)
        return f"{shown}{task.target_delimiter}{answer}{task.fewshot_delimiter}" if answer else shown


def _pick(choices: Sequence[str], index: int) -> str:
    if not 0 <= index < len(choices):
        raise ConfigError(f"an example's answer is number {index}, and it has {len(choices)} choices")
    return choices[index]


# From a question to its text, choices and answer, by the rules of the lm-evaluation-harness.
#
# A string is a column's name if the question has that column, else a jinja2 template. A rendered run of digits is an
# index into the choices, a rendered list is a list.


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


# `acc` and `acc_norm` of a task, as the lm-evaluation-harness defines them.

METRICS = ("acc", "acc_norm")
"""Metrics of every task, by the harness's names."""


@dataclass(frozen=True, slots=True)
class TaskAccuracy:
    """Shares of right answers, each with its standard error (None for a single question).

    Args:
        acc: the likeliest choice is right. acc_norm: the likeliest per character of the choice is.
    """

    acc: float
    acc_stderr: float | None
    acc_norm: float
    acc_norm_stderr: float | None


@dataclass(frozen=True, slots=True)
class TaskResult:
    """One task.

    Args:
        reference: the reference's accuracy. same_choice: share of questions where both choose the same; both None
            without a reference.
        cut: contexts that lost their beginning. unanswerable: questions whose answer is none of the choices; they
            count as wrong. left_out: metrics that the task lists and that are not computed here.
    """

    name: str
    questions: int
    num_fewshot: int
    model: TaskAccuracy
    reference: TaskAccuracy | None
    same_choice: float | None
    cut: int
    unanswerable: int
    left_out: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def picks(question: TaskQuestion, loglikelihoods: Sequence[float]) -> tuple[int, int]:
    """The choices for `acc` and for `acc_norm`; the first one on a tie."""
    own = np.array(loglikelihoods)
    lengths = np.array([float(len(choice)) for choice in question.choices])
    return int(own.argmax()), int((own / lengths).argmax())


def accuracy(questions: Sequence[TaskQuestion], picked: Sequence[tuple[int, int]]) -> TaskAccuracy:
    """Over all questions of a task."""
    plain = [float(pick[0] in question.gold) for question, pick in zip(questions, picked, strict=True)]
    normed = [float(pick[1] in question.gold) for question, pick in zip(questions, picked, strict=True)]
    return TaskAccuracy(*mean_and_error(plain), *mean_and_error(normed))
