"""Table of jobs, for pages and terminals of live and simulated runs."""

from loadgen.report import numbers
from loadgen.report.table import Table, TableRow, columns
from loadgen.trace.jobs import JobFigures


def job_rows(jobs: JobFigures) -> list[tuple[str, str]]:
    """Figures of jobs by name, and the misses after each class of pauses."""
    found = [
        ("jobs completed", f"{jobs.completed:,} of {jobs.jobs:,}"),
        ("job time p50 / p95", f"{_time(jobs.time_p50_s)} / {_time(jobs.time_p95_s)}"),
        (
            "computed tokens a job, p50 / p95",
            f"{_tokens(jobs.computed_tokens_p50)} / {_tokens(jobs.computed_tokens_p95)}",
        ),
        ("cached share", numbers.share(jobs.cached_share)),
    ]
    if jobs.npu_s_per_job is not None:
        found.append(("NPU seconds a job", numbers.significant(jobs.npu_s_per_job)))
    for one in jobs.pauses:
        text = f"{numbers.share(one.miss_share)} of {one.repeated_tokens:,} tokens ({one.turns:,} turns)"
        found.append((f"misses, pauses {one.pause}", text))
    return found


def job_table(jobs: JobFigures | None) -> Table:
    """Table of `job_rows`; without rows if there are no jobs."""
    rows = [TableRow(list(row)) for row in job_rows(jobs)] if jobs is not None else []
    return Table(columns("jobs", "value"), rows)


def _time(seconds: float | None) -> str:
    return numbers.MISSING if seconds is None else numbers.duration(seconds)


def _tokens(tokens: float | None) -> str:
    return numbers.MISSING if tokens is None else f"{tokens:,.0f}"
