"""Tables of jobs, for pages and terminals of live and simulated runs."""

from loadgen.report import numbers
from loadgen.report.fragments import Html, element, folded_warnings
from loadgen.report.table import Table, TableRow, columns, html_table
from loadgen.trace.jobs import JobFigures

EXPLANATION = (
    "A job is a whole conversation. Its time runs from its first turn to its last response, pauses included; response "
    "time is the sum over its turns without pauses. Times and computed tokens are of completed jobs. NPU seconds are "
    "those of the whole run over completed jobs. Repeated tokens are leading prompt tokens that an earlier turn of the "
    "job had; those computed again were no longer in any cache. A turn that joins branches counts its pause from the "
    "last of them."
)
"""Text for a page, above the tables."""


def job_rows(jobs: JobFigures) -> list[tuple[str, str]]:
    """Figures of jobs by name."""
    found = [
        ("jobs completed", f"{jobs.completed:,} of {jobs.jobs:,}"),
        ("job time p50 / p95", f"{_time(jobs.time_p50_s)} / {_time(jobs.time_p95_s)}"),
        ("response time a job, p50 / p95", f"{_time(jobs.responses_p50_s)} / {_time(jobs.responses_p95_s)}"),
        (
            "computed prompt tokens a job, p50 / p95",
            f"{_tokens(jobs.computed_tokens_p50)} / {_tokens(jobs.computed_tokens_p95)}",
        ),
        ("cached prompt tokens", numbers.share(jobs.cached_share)),
    ]
    if jobs.npu_s_per_job is not None:
        found.append(("NPU seconds a completed job", numbers.significant(jobs.npu_s_per_job)))
    return found


def miss_rows(jobs: JobFigures) -> list[tuple[str, str]]:
    """Repeated tokens that were computed again, by the pause in front of the turn."""
    return [
        (
            f"computed again, pauses {one.pause}",
            f"{numbers.share(one.miss_share)} of {numbers.count(one.repeated_tokens)} tokens, "
            f"{one.turns:,} turn{'s' * (one.turns != 1)}",
        )
        for one in jobs.pauses
    ]


def incomplete_lines(jobs: JobFigures | None) -> list[str]:
    """Why jobs did not complete, and what to change; a sentence for each reason."""
    if jobs is None:
        return []
    return [
        f"{count:,} of {jobs.jobs:,} jobs did not complete, because of {reason}"
        for reason, count in jobs.incomplete.items()
    ]


def job_table(jobs: JobFigures | None) -> Table:
    """Table of `job_rows`; without rows if there are no jobs."""
    rows = [TableRow(list(row)) for row in job_rows(jobs)] if jobs is not None else []
    return Table(columns("jobs", "value"), rows)


def miss_table(jobs: JobFigures | None) -> Table:
    """Misses by the length of the pause; without rows if they are not known."""
    rows = [
        TableRow(
            [
                one.pause,
                numbers.count(one.turns),
                numbers.count(one.repeated_tokens),
                numbers.count(one.missed_tokens),
                numbers.share(one.miss_share),
            ]
        )
        for one in (jobs.pauses if jobs is not None else [])
    ]
    return Table(columns("pause before a turn", "turns", "repeated tokens", "computed again", "share"), rows)


def job_section(jobs: JobFigures | None) -> list[Html]:
    """Contents of a page's section; empty without jobs."""
    if jobs is None:
        return []
    return [
        folded_warnings(incomplete_lines(jobs)),
        element("p", EXPLANATION, "soft"),
        html_table(job_table(jobs)),
        html_table(miss_table(jobs)),
    ]


def _time(seconds: float | None) -> str:
    return numbers.MISSING if seconds is None else numbers.duration(seconds)


def _tokens(tokens: float | None) -> str:
    return numbers.MISSING if tokens is None else f"{tokens:,.0f}"
