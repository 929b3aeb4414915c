"""Tables of a run, for page and console."""

from loadgen.report import numbers
from loadgen.report.table import Table, columns, table_of
from serving.tools.chaos.findings import ChaosFindings, KindFindings, Pauses
from serving.tools.chaos.result import ChaosRun, Event
from serving.tools.chaos.scenario import ENGINES
from serving.tools.chaos.schedule import GRAVE


def kind_table(found: ChaosFindings) -> Table:
    """The effects of each kind of fault at each pool."""
    heads = columns(
        "fault", "pool", "times", "nobody to hit", "replaced", "survived", "replaced after p50",
        "replaced after p99", "replaced after max", "streams stopped", "fault to token p50", "fault to token p99",
        "fault to token max", text=("pool",),
    )  # fmt: skip
    return table_of(heads, [_kind_row(kind) for kind in found.kinds])


def event_table(run: ChaosRun) -> Table:
    """Every fault."""
    heads = columns("at", "fault", "target", "for", "fate", "replaced after", text=("fault", "target", "fate"))
    return table_of(heads, [_event_row(event) for event in run.events])


def pauses(found: Pauses) -> str:
    """Quantiles in words. Effects: none."""
    if not found.count:
        return "(no stream stood still)"
    p50, p99, most = (numbers.duration(value) for value in (found.p50_s, found.p99_s, found.max_s))
    return f"p50 {p50}, p99 {p99}, max {most} ({found.count:,} streams)"


def downtime(found: ChaosFindings) -> str:
    """How long the system would not have served a request. Effects: none."""
    return f"{found.downs} times, at most {numbers.duration(found.longest_down_s)}" if found.downs else "never"


def share(part: int, whole: int) -> str:
    """Per cent; 100 % means all. Effects: none."""
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


def _event_row(event: Event) -> list[str]:
    return [
        numbers.clock(event.at_s),
        event.kind.replace("_", " "),
        event.target or numbers.MISSING,
        numbers.duration(event.lasts_s or None),
        event.fate,
        numbers.duration(event.replaced_s),
    ]


def _times(found: Pauses) -> list[str]:
    return [numbers.duration(value) for value in (found.p50_s, found.p99_s, found.max_s)]
