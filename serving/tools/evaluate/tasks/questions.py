"""The questions of a task as pairs of context and continuation, few-shot examples included.

Two forms, as in the lm-evaluation-harness. Usually a question's text is the context and its choices are the
continuations. Where `doc_to_text` gives an index, the choices are the contexts and the target is the continuation of
each (sentences with a gap).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from serving.errors import ConfigError
from serving.tools.evaluate.tasks.dataset import Doc, read_split
from serving.tools.evaluate.tasks.task_file import TaskFile
from serving.tools.evaluate.tasks.template import choices_of, render, target_of, text_of

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
