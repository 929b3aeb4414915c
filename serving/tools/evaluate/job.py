"""Evaluation jobs, read and checked before any weight is loaded: mistakes must not cost minutes."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from serving.errors import ConfigError, NotWrittenError
from serving.gateway.api.tokenizer import Tokenizer
from serving.model.architecture import Architecture
from serving.model.config import read_architecture
from serving.tools.evaluate.loglikelihood import Continuation, encode_pair
from serving.tools.evaluate.tasks.questions import TaskQuestion, read_questions
from serving.tools.evaluate.tasks.task_file import TaskFile, find_task_files, read_task_file
from serving.tools.evaluate.texts import Text, TextWindow, check_same_tokens, cut_windows, read_documents, read_text

_DEFAULT_CONTEXT = 2048
_SAMPLE_CHARACTERS = 20_000
MOST_THREADS = 1024


@dataclass(frozen=True, slots=True)
class TextJob:
    """One text and its windows."""

    text: Text
    windows: tuple[TextWindow, ...]


@dataclass(frozen=True, slots=True)
class TaskJob:
    """One task, and the sequences fed for each choice of each question."""

    task: TaskFile
    num_fewshot: int
    questions: tuple[TaskQuestion, ...]
    asked: tuple[tuple[Continuation, ...], ...]


@dataclass(frozen=True, slots=True)
class EvaluationJob:
    """All texts and tasks.

    Args:
        context, stride: of the windows [tokens].
    """

    texts: tuple[TextJob, ...]
    tasks: tuple[TaskJob, ...]
    context: int
    stride: int

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that will be fed."""
        return max(len(fed) for fed, _ in self._sequences())

    @property
    def largest_id(self) -> int:
        """Largest id of all tokens that are fed or predicted."""
        return max(max(*fed, *targets) for fed, targets in self._sequences())

    def _sequences(self) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """All sequences to feed, with their targets."""
        for text in self.texts:
            yield from ((window.tokens, window.targets) for window in text.windows)
        for task in self.tasks:
            yield from ((one.fed, one.targets) for question in task.asked for one in question)


def read_job(arguments: argparse.Namespace) -> EvaluationJob:
    """Read all inputs of the command line except weights.

    Raises: ConfigError for what does not fit; ModelError for folders that hold no model.
    Effects: reads files.
    """
    _check(arguments)
    config = read_architecture(arguments.model)
    tokenizer = Tokenizer.from_folder(arguments.model)
    limit = config.max_position_embeddings
    if arguments.reference is not None:
        reference = read_architecture(arguments.reference)
        limit = min(limit, reference.max_position_embeddings)
        _check_comparable(config, reference, tokenizer, arguments)
    if arguments.context is not None and arguments.context > limit:
        raise ConfigError(f"--context {arguments.context} exceeds the {limit} tokens that the model can read")
    context = arguments.context or min(_DEFAULT_CONTEXT, limit)
    stride = arguments.stride or context
    if stride > context:
        raise ConfigError(f"--stride {stride} is more than the context of {context}: tokens between would be left out")
    texts = [_text(path, tokenizer, context, stride, arguments) for path in arguments.text]
    files = [read_task_file(path) for path in find_task_files(arguments.tasks)]
    tasks = [_task(task, tokenizer, arguments.context or limit, arguments) for task in files]
    job = EvaluationJob(tuple(texts), tuple(tasks), context, stride)
    if job.largest_id >= config.vocab_size:
        raise ConfigError(
            f"the tokenizer in {arguments.model} gives token {job.largest_id}, but the model has {config.vocab_size}: "
            "they do not match"
        )
    return job


def _check(arguments: argparse.Namespace) -> None:
    if not arguments.text and not arguments.tasks:
        raise ConfigError("nothing to evaluate: give held-out text with --text, or tasks with --tasks")
    for name in ("context", "stride", "batch", "limit", "max_tokens", "threads"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be 1 or more, not {value}")
    if arguments.threads is not None and arguments.threads > MOST_THREADS:
        raise ConfigError(f"--threads {arguments.threads}: {MOST_THREADS} at most")
    for name in ("chunk", "num_fewshot"):
        value = getattr(arguments, name)
        if value is not None and value < 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be 0 or more, not {value}")
    for path in (arguments.model, arguments.reference):
        if path is not None and not (path / "config.json").is_file():
            raise ConfigError(f"{path} is no checkpoint folder: it holds no config.json")
    out = arguments.json
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise NotWrittenError(f"--json {out} cannot be written: name a file in a folder that exists")


def _check_comparable(
    config: Architecture, reference: Architecture, tokenizer: Tokenizer, arguments: argparse.Namespace
) -> None:
    other = Tokenizer.from_folder(arguments.reference)
    samples = [read_documents(path)[0][:_SAMPLE_CHARACTERS] for path in arguments.text if read_documents(path)]
    check_same_tokens(tokenizer, other, samples)
    if config.vocab_size != reference.vocab_size:
        raise ConfigError(
            f"the model has {config.vocab_size} logits and the reference {reference.vocab_size}: compare models of one"
            f" family"
        )


def _text(path: Path, tokenizer: Tokenizer, context: int, stride: int, arguments: argparse.Namespace) -> TextJob:
    text = read_text(path, tokenizer, max_documents=arguments.limit, max_tokens=arguments.max_tokens)
    windows = [window for document in text.documents for window in cut_windows(document, context, stride)]
    return TextJob(text, tuple(windows))


def _task(task: TaskFile, tokenizer: Tokenizer, longest: int, arguments: argparse.Namespace) -> TaskJob:
    num_fewshot = task.num_fewshot if arguments.num_fewshot is None else arguments.num_fewshot
    questions = read_questions(task, num_fewshot=num_fewshot, limit=arguments.limit)
    asked = []
    for number, question in enumerate(questions, 1):
        try:
            asked.append(tuple(encode_pair(tokenizer, *pair, longest) for pair in question.pairs))
        except ConfigError as error:
            raise ConfigError(f"{task.path}, question {number}: {error}") from None
    return TaskJob(task, num_fewshot, tuple(questions), tuple(asked))
