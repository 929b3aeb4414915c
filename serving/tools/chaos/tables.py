"""Tables of a run, for page and console."""

from loadgen.report import numbers
from loadgen.report.table import Table, columns, table_of
from serving.faults.scenario import ENGINES
from serving.faults.schedule import GRAVE
from serving.tools.chaos.findings import ChaosFindings, KindFindings, Pauses, cut_by, pauses_of, stops_streams
from serving.tools.chaos.result import ChaosRun, Event
from serving.tools.chaos.signals import signal_of


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
    hurt = kind.kind in GRAVE
    streams = hurt and kind.pool in ENGINES
    none = numbers.MISSING
    return [
        kind.kind.replace("_", " "),
        kind.pool or none,
        numbers.count(kind.events - kind.skipped),
        numbers.count(kind.skipped),
        numbers.count(kind.replaced) if hurt else none,
        numbers.count(kind.survived) if hurt else none,
        *(_times(kind.replacement) if hurt else [none] * 3),
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
