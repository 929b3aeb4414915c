"""One evaluation from command line to report."""

import argparse
import time
from functools import partial
from itertools import chain
from pathlib import Path

import torch

from loadgen.progress_bar import ProgressBar
from serving.model.loader import DtypeName, load_model
from serving.model.model import Model
from serving.tools.evaluate.evaluation_report import EvaluationReport, print_report, write_report
from serving.tools.evaluate.job import EvaluationJob, TaskJob, read_job
from serving.tools.evaluate.loglikelihood import loglikelihoods
from serving.tools.evaluate.perplexity import TextResult, WindowScores, score_windows, sum_up
from serving.tools.evaluate.scorer import Scorer
from serving.tools.evaluate.tasks.questions import METRICS, TaskResult, accuracy, picks

_ALL = "all texts"


def evaluate(arguments: argparse.Namespace) -> int:
    """Evaluate, print, and write the report if requested.

    Args:
        arguments: of the command line, as `serving.cli.evaluate` declares it.
    Returns: exit code.
    Raises: ConfigError for what the user can correct; ModelError for unusable folders; EngineError if a pass fails.
    Effects: prints; writes one file; may set torch's threads.
    """
    job = read_job(arguments)
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    begun = time.monotonic()
    with ProgressBar("reading", counted=True, quiet=arguments.quiet) as progress:
        model, reference = _load(arguments, job, progress)
        loaded = time.monotonic()
        texts = _texts(job, model, reference, progress)
        tasks = [_task(one, model, reference, progress) for one in job.tasks]
    ended = time.monotonic()
    report = EvaluationReport(
        _settings(arguments, job, model), tuple(texts), tuple(tasks), loaded - begun, ended - loaded
    )
    print_report(report)
    if arguments.json is not None:
        write_report(report, arguments.json)
    return 0


def _load(arguments: argparse.Namespace, job: EvaluationJob, progress: ProgressBar) -> tuple[Scorer, Scorer | None]:
    """The model and its reference; one set of weights where both are the same."""

    def loaded(folder: Path, dtype: DtypeName, what: str) -> Model:
        def show(done: int, total: int) -> None:
            progress.update(done, what=f"loading {what}", total=total)

        return load_model(folder, device=arguments.device, dtype=dtype, progress=show)

    scorer = partial(Scorer, context=job.longest, batch=arguments.batch, chunk=arguments.chunk)
    model = loaded(arguments.model, arguments.dtype, "the model")
    own = scorer(model, kv_dtype=arguments.kv_dtype)
    if arguments.reference is None:
        return own, None
    same = arguments.model.samefile(arguments.reference) and arguments.dtype == arguments.reference_dtype
    other = model if same else loaded(arguments.reference, arguments.reference_dtype, "the reference")
    return own, scorer(other)


def _texts(job: EvaluationJob, model: Scorer, reference: Scorer | None, progress: ProgressBar) -> list[TextResult]:
    """One result per text, and one of all where there are several."""
    results: list[TextResult] = []
    everything: list[WindowScores] = []
    for one in job.texts:
        progress.begin(one.text.name, sum(len(window.targets) for window in one.windows))
        scores = []
        for score in score_windows(one.windows, model, reference):
            scores.append(score)
            progress.advance(len(score.nats))
        results.append(sum_up(one.text.name, [one.text], scores))
        everything += scores
    if len(results) > 1:
        results.append(sum_up(_ALL, [one.text for one in job.texts], everything))
    return results


def _task(job: TaskJob, model: Scorer, reference: Scorer | None, progress: ProgressBar) -> TaskResult:
    asked = list(chain.from_iterable(job.asked))
    progress.begin(job.task.name, len(asked) * (1 if reference is None else 2))
    own = _picks(job, model, progress)
    other = None if reference is None else _picks(job, reference, progress)
    same = None
    if other is not None:
        same = sum(ours[0] == theirs[0] for ours, theirs in zip(own, other, strict=True)) / len(own)
    return TaskResult(
        name=job.task.name,
        questions=len(job.questions),
        num_fewshot=job.num_fewshot,
        model=accuracy(job.questions, own),
        reference=None if other is None else accuracy(job.questions, other),
        same_choice=same,
        cut=sum(one.cut for one in asked),
        unanswerable=sum(not question.gold for question in job.questions),
        left_out=tuple(name for name in job.task.metrics if name not in METRICS),
    )


def _picks(job: TaskJob, model: Scorer, progress: ProgressBar) -> list[tuple[int, int]]:
    found = loglikelihoods(model, job.asked, progress.advance)
    return [picks(question, values) for question, values in zip(job.questions, found, strict=True)]


def _settings(arguments: argparse.Namespace, job: EvaluationJob, model: Scorer) -> dict[str, object]:
    """Settings needed to repeat the run."""
    return {
        "model": str(arguments.model),
        "reference": None if arguments.reference is None else str(arguments.reference),
        "dtype": str(model.model.dtype).removeprefix("torch."),
        "reference_dtype": arguments.reference_dtype,
        "kv_dtype": arguments.kv_dtype,
        "device": str(model.model.device),
        "context": job.context,
        "stride": job.stride,
        "chunk": arguments.chunk,
        "batch": arguments.batch,
        "limit": arguments.limit,
        "max_tokens": arguments.max_tokens,
        "torch": str(torch.__version__),
    }
