"""The report on the console: the verdict first, then its numbers."""

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from serving.chaos.findings import Findings, Pauses, cut_with_gateway
from serving.chaos.progress import minutes
from serving.chaos.result import ChaosRun
from serving.chaos.scenario import ENGINES
from serving.chaos.schedule import GRAVE

_MOST_LINES = 20


def print_report(run: ChaosRun, found: Findings, console: Console) -> None:
    """Prints what a run proved."""
    console.print(f"[bold]{escape(run.scenario)}[/], seed {run.seed}, {run.model}: {verdict(run, found)}")
    console.print(
        f"duration      {minutes(run.duration_s).strip()} of {minutes(run.asked_s).strip()}, {found.hits} faults"
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
    console.print(f"leaks         {'none' if not found.leaks else len(found.leaks)}{_flips(run)}")
    console.print()
    console.print(kind_table(found))
    for line in problems(run, found)[:_MOST_LINES]:
        console.print(f"  {line}", markup=False)


def verdict(run: ChaosRun, found: Findings) -> str:
    """The run in one line. Effects: none."""
    if found.clean:
        return "[green]nothing lost, nothing different, nothing left behind[/]"
    parts = [
        f"{found.failed} lost" if found.failed else "",
        f"{found.compared - found.exact} different" if found.compared > found.exact else "",
        f"{len(found.leaks)} left behind" if found.leaks else "",
        f"{found.not_replaced} not replaced" if found.not_replaced else "",
        f"down for {found.longest_down_s:.1f} s" if found.down_too_long else "",
        "nothing finished" if not found.finished else "",
        "no fault hit anybody" if not found.hits else "",
    ]
    return f"[red]{', '.join(part for part in parts if part)}[/]"


def problems(run: ChaosRun, found: Findings) -> list[str]:
    """Everything that is wrong, a line each. Effects: none."""
    lines = [f"{count} x failed: {reason}" for reason, count in sorted(found.reasons.items())]
    for lost in lost_requests(run):
        lines.append(
            f"request {lost['number']} ({lost['form']}), sent at {minutes(lost['sent_s']).strip()}, failed at "
            f"{minutes(lost['ended_s']).strip()} after {lost['tokens']} tokens: {lost['reason']}"
        )
    for index, other in sorted(run.differences.items()):
        answer = run.answers[index]
        at = minutes(answer.sent_s - run.begun_s).strip()
        lines.append(f"request {index} sent at {at} ({answer.ask.form}): {other}")
    lines += [
        f"{minutes(e.at_s).strip()} {e.kind} {e.target}: not replaced" for e in run.events if e.fate == "not replaced"
    ]
    return [*lines, *found.leaks]


def lost_requests(run: ChaosRun) -> list[dict[str, Any]]:
    """Every request that failed, with its times since the load began. Effects: none."""
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


def kind_table(found: Findings) -> Table:
    """What the faults of each kind did at each pool."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("fault", "pool", "times", "replaced", "survived", "replaced after", "streams", "fault to next token"):
        table.add_column(name, justify="left" if name in ("fault", "pool") else "right", no_wrap=True)
    for kind in found.kinds:
        hurt = kind.kind in GRAVE
        table.add_row(
            kind.kind,
            kind.pool or "-",
            f"{kind.events - kind.skipped}" + (f" (+{kind.skipped} nobody)" if kind.skipped else ""),
            str(kind.replaced) if hurt else "-",
            str(kind.survived) if hurt else "-",
            _middle(kind.replacement) if hurt else "-",
            str(kind.resumed.count) if hurt and kind.pool in ENGINES else "-",
            _middle(kind.resumed) if hurt and kind.pool in ENGINES else "-",
        )
    return table


def pauses(found: Pauses) -> str:
    """Quantiles in words. Effects: none."""
    if not found.count:
        return "(no stream stood still)"
    return f"p50 {found.p50_s:.2f} s, p99 {found.p99_s:.2f} s, max {found.max_s:.2f} s ({found.count} streams)"


def downtime(found: Findings) -> str:
    """How long the system would not have served a request. Effects: none."""
    return f"{found.downs} times, at most {found.longest_down_s:.1f} s" if found.downs else "never"


def share(part: int, whole: int) -> str:
    """Per cent, rounded down: 100 % means all. Effects: none."""
    return f"{int(1000 * part / whole) / 10:g} %" if whole else "nothing to compare"


def _middle(found: Pauses) -> str:
    return "-" if not found.count else f"{found.p50_s:.1f} s, max {found.max_s:.1f} s"


def _cut(found: Findings) -> str:
    return f", {found.cut:,} cut with a killed gateway" if found.cut else ""


def _flips(run: ChaosRun) -> str:
    flips = run.leaks.repaired_flips
    return f" ({flips} blocks with a turned bit that nobody had read again: found and removed)" if flips else ""
