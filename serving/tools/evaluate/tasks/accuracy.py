"""`acc` and `acc_norm` of a task, as the lm-evaluation-harness defines them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from serving.tools.evaluate.statistics import mean_and_error
from serving.tools.evaluate.tasks.questions import TaskQuestion

METRICS = ("acc", "acc_norm")
"""What is computed of every task, by the harness's names."""


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
