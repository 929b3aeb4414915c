"""Tables of a run, for page and console."""

from dataclasses import asdict
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape

from loadgen.report import numbers
from loadgen.report.table import Table, columns, select, table_of, terminal_table
from serving.faults.schedule import GRAVE
from serving.tools.chaos.chaos_result import ChaosRun, Event
from serving.tools.chaos.findings import (
    ChaosFindings,
    KindFindings,
    Pauses,
    cut_by,
    cut_with_gateway,
    pauses_of,
    stops_streams,
)
from serving.tools.chaos.hit_stream import as_value, drawn_stream, signal_of
from serving.values.pool_kinds import ENGINE_POOLS
from serving.version import VERSION


def kind_table(found: ChaosFindings) -> Table:
    """The effects of each kind of fault at each pool."""
    heads = columns(
        "fault", "pool", "times", "nobody to hit", "replaced", "survived", "replaced after p50",
        "replaced after p99", "replaced after max", "streams stopped", "fault to token p50", "fault to token p99",
        "fault to token max", text=("pool",),
    )  # fmt: skip
    return table_of(heads, [_kind_row(kind) for kind in found.kinds])


def event_table(run: ChaosRun) -> Table:
    """Every fault: its kind, target, signal and outcome."""
    heads = columns(
        "no.", "at", "fault", "pool", "target", "process", "by", "for", "what came of it",
        text=("fault", "pool", "target", "process", "by"), long=("what came of it",),
    )  # fmt: skip
    return table_of(heads, [_event_row(event, run) for event in run.events])


def outcome(event: Event, run: ChaosRun) -> str:
    """Outcome for the target and for the affected streams, in words."""
    parts = [f"replaced after {numbers.duration(event.replaced_s)}" if event.fate == "replaced" else event.fate]
    if stops_streams(event):
        found = Pauses.of(pauses_of(event, run.answers))
        parts.append(
            f"{_several(found.count, 'stream', 'streams')} went on after {numbers.duration(found.max_s)} at most"
            if found.count
            else "no stream stood still"
        )
    if cut := sum(cut_by(event, answer, run.downs) for answer in run.answers if answer.outcome in ("failed", "open")):
        parts.append(f"{_several(cut, 'request was', 'requests were')} cut or refused in the meantime")
    return "; ".join(parts)


def pauses(found: Pauses) -> str:
    """Quantiles in words."""
    if not found.count:
        return "(no stream stood still)"
    p50, p99, most = (numbers.duration(value) for value in (found.p50_s, found.p99_s, found.max_s))
    return f"p50 {p50}, p99 {p99}, max {most} ({found.count:,} streams)"


def downtime(found: ChaosFindings) -> str:
    """Time during which the system would not have served a request."""
    return f"{found.downs} times, at most {numbers.duration(found.longest_down_s)}" if found.downs else "never"


def beside_floods(found: ChaosFindings) -> str:
    """Latencies of the load during another tenant's flood."""
    parts = [
        f"{one.name} p99 {numbers.duration(one.beside_p99_s)} ({one.beside:,}), alone "
        f"{numbers.duration(one.alone_p99_s)} ({one.alone:,}), at most {numbers.duration(one.limit_s)} is fair"
        for one in found.beside_floods
    ]
    return "; ".join(parts)


def share(part: int, whole: int) -> str:
    """Per cent; 100 % means all."""
    return numbers.share(part / whole) if whole else "nothing to compare"


def _kind_row(kind: KindFindings) -> list[str]:
    grave = kind.kind in GRAVE
    streams = grave and kind.pool in ENGINE_POOLS
    none = numbers.MISSING
    return [
        kind.kind.replace("_", " "),
        kind.pool or none,
        numbers.count(kind.events - kind.skipped),
        numbers.count(kind.skipped),
        numbers.count(kind.replaced) if grave else none,
        numbers.count(kind.survived) if grave else none,
        *(_times(kind.replacement) if grave else [none] * 3),
        numbers.count(kind.resumed.count) if streams else none,
        *(_times(kind.resumed) if streams else [none] * 3),
    ]


def _event_row(event: Event, run: ChaosRun) -> list[str]:
    return [
        numbers.count(event.number),
        numbers.clock(event.at_s),
        event.kind.replace("_", " "),
        event.pool or numbers.MISSING,
        event.target or numbers.MISSING,
        event.where or numbers.MISSING,
        signal_of(event),
        numbers.duration(event.lasts_s or None),
        outcome(event, run),
    ]


def _several(count: int, one: str, more: str) -> str:
    return f"1 {one}" if count == 1 else f"{count:,} {more}"


def _times(found: Pauses) -> list[str]:
    return [numbers.duration(value) for value in (found.p50_s, found.p99_s, found.max_s)]


# The report on the console: the verdict first, then its numbers.

_MOST_LINES = 20
_KIND_COLUMNS = (
    "fault", "pool", "times", "nobody to hit", "replaced", "survived", "replaced after p50", "replaced after max",
    "streams stopped", "fault to token p50", "fault to token max",
)  # fmt: skip
"""Columns that fit on a terminal."""


def print_report(run: ChaosRun, found: ChaosFindings, console: Console) -> None:
    """Print the findings of a run."""
    console.print(f"[bold]{escape(run.scenario)}[/], seed {run.seed}, {run.model}: {verdict(found)}")
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


def verdict(found: ChaosFindings) -> str:
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


# report.json: all contents of the page, for scripts.


def report_json(run: ChaosRun, found: ChaosFindings) -> bytes:
    """The report as indented JSON."""
    stream = drawn_stream(run)
    value: dict[str, Any] = {
        "version": VERSION,
        "scenario": run.scenario,
        "seed": run.seed,
        "model": run.model,
        "clean": found.clean,
        "interrupted": run.interrupted,
        "asked_s": run.asked_s,
        "duration_s": round(run.duration_s, 3),
        "references": run.references,
        "logprob_distance": run.logprob_distance,
        **asdict(found),
        "problems": problems(run, found),
        "lost_requests": lost_requests(run),
        "repaired_flips": run.leaks.repaired_flips,
        "stream": None if stream is None else as_value(stream),
        "events": [{**_without_clock(asdict(event)), "outcome": outcome(event, run)} for event in run.events],
        "not_ready": [
            {"at_s": round(down.begun_s - run.begun_s, 3), "lasts_s": round(down.ended_s - down.begun_s, 3)}
            for down in run.downs
        ],
        "samples": [asdict(sample) for sample in run.samples],
    }
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def _without_clock(event: dict[str, Any]) -> dict[str, Any]:
    del event["at_clock_s"]  # meaningless outside the process
    return event
