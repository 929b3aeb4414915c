"""The report on the console: the verdict first, then its numbers."""

from typing import Any

from rich.console import Console
from rich.markup import escape

from loadgen.report import numbers
from loadgen.report.table import select, terminal_table
from serving.tools.chaos.findings import ChaosFindings, cut_with_gateway
from serving.tools.chaos.result import ChaosRun
from serving.tools.chaos.tables import beside_floods, downtime, kind_table, pauses, share

_MOST_LINES = 20
_KIND_COLUMNS = (
    "fault", "pool", "times", "nobody to hit", "replaced", "survived", "replaced after p50", "replaced after max",
    "streams stopped", "fault to token p50", "fault to token max",
)  # fmt: skip
"""Columns that fit on a terminal."""


def print_report(run: ChaosRun, found: ChaosFindings, console: Console) -> None:
    """Print the findings of a run."""
    console.print(f"[bold]{escape(run.scenario)}[/], seed {run.seed}, {run.model}: {verdict(run, found)}")
    console.print(
        f"duration      {numbers.clock(run.duration_s)} of {numbers.clock(run.asked_s)}, {found.hits} faults"
        f"{', ended early' if run.interrupted else ''}"
    )
    console.print(
        f"requests      {found.sent:,} sent, {found.finished:,} finished, {found.failed:,} failed, "
        f"{found.cancelled:,} cancelled by us{_cut(found)}; {found.tokens:,} tokens"
    )
    console.print(
        f"token-exact   {found.exact:,} of {found.compared:,} ({share(found.exact, found.compared)}) with "
        f"{run.references} undisturbed answers, each given twice; log-probabilities within {run.logprob_distance:.1g}"
    )
    console.print(f"resumed       {found.resumptions:,} times; fault to next token {pauses(found.resumed)}")
    console.print(f"not ready     {downtime(found)}")
    if found.beside_floods:
        console.print(f"beside flood  {beside_floods(found)}")
    console.print(f"leaks         {'none' if not found.leaks else len(found.leaks)}{_flips(run)}")
    console.print()
    console.print(terminal_table(select(kind_table(found), *_KIND_COLUMNS), console.width))
    for line in problems(run, found)[:_MOST_LINES]:
        console.print(f"  {line}", markup=False)


def verdict(run: ChaosRun, found: ChaosFindings) -> str:
    """The run in one line."""
    if found.clean:
        return "[green]nothing lost, nothing different, nothing left behind[/]"
    parts = [
        f"{found.failed} lost" if found.failed else "",
        f"{found.compared - found.exact} different" if found.compared > found.exact else "",
        f"{len(found.leaks)} left behind" if found.leaks else "",
        f"{found.not_replaced} not replaced" if found.not_replaced else "",
        f"down for {numbers.duration(found.longest_down_s)}" if found.down_too_long else "",
        "kept waiting by another tenant" if found.unfair else "",
        "nothing finished" if not found.finished else "",
        "no fault hit anybody" if not found.hits else "",
    ]
    return f"[red]{', '.join(part for part in parts if part)}[/]"


def problems(run: ChaosRun, found: ChaosFindings) -> list[str]:
    """Every problem, one line each."""
    lines = [f"{count} x failed: {reason}" for reason, count in sorted(found.reasons.items())]
    for lost in lost_requests(run):
        lines.append(
            f"request {lost['number']} ({lost['form']}), sent at {numbers.clock(lost['sent_s'])}, failed at "
            f"{numbers.clock(lost['ended_s'])} after {lost['tokens']} tokens: {lost['reason']}"
        )
    for index, other in sorted(run.differences.items()):
        answer = run.answers[index]
        at = numbers.clock(answer.sent_s - run.begun_s)
        lines.append(f"request {index} sent at {at} ({answer.ask.form}): {other}")
    lines += [
        f"{numbers.clock(e.at_s)} {e.kind} {e.target}: not replaced" for e in run.events if e.fate == "not replaced"
    ]
    if found.unfair:
        lines.append(f"during another tenant's flood: {beside_floods(found)}")
    return [*lines, *found.leaks]


def lost_requests(run: ChaosRun) -> list[dict[str, Any]]:
    """Every request that failed, with its times since the load began."""
    return [
        {
            "number": number,
            "form": answer.ask.form,
            "sent_s": round(answer.sent_s - run.begun_s, 3),
            "ended_s": round(answer.ended_s - run.begun_s, 3) if answer.ended_s else round(run.duration_s, 3),
            "tokens": sum(len(choice.tokens) for choice in answer.choices),
            "reason": answer.reason or "still open",
        }
        for number, answer in enumerate(run.answers)
        if answer.outcome in ("failed", "open") and not cut_with_gateway(answer, run)
    ]


def _cut(found: ChaosFindings) -> str:
    return f", {found.cut:,} cut with a killed gateway" if found.cut else ""


def _flips(run: ChaosRun) -> str:
    flips = run.leaks.repaired_flips
    return f" ({flips} blocks with a flipped bit, not read since: found and removed)" if flips else ""
