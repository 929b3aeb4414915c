"""Timelines of requests in a terminal, and the texts that the page also uses."""

import time

from loadgen.report import numbers
from loadgen.report.table import Table, columns, table_of, terminal_table
from serving.gateway.core.causes import seconds_by_kind
from serving.gateway.core.timeline import ChoiceLine, RequestTimes, TimePart
from serving.terminal import table_console

MOST_ROWS = 60
"""Parts of a choice that are listed individually; beyond that they are summed by kind."""
_SHOWN_S = 1e-6
"""Shorter parts are noise of the clocks; the sum counts them."""


def head_line(times: RequestTimes) -> str:
    """One line: duration, outcome, size."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(times.arrived))
    facts = [
        f"{times.prompt_tokens} prompt tokens",
        f"{times.tokens} output tokens",
        f"ended by {times.outcome}" if not times.failed else f"{times.outcome}: {times.reason or 'the client left'}",
    ]
    first = times.choices[0].first_token_s if times.choices else None
    if first is not None:
        facts.append(f"first token after {numbers.duration(first)}")
    if times.resumed:
        facts.append(f"resumed {times.resumed} times")
    return f"{at}  {numbers.duration(times.total_s)}  {', '.join(facts)}"


def details(part: TimePart) -> str:
    """Remarks on a part: place, amount, rate, and duration on real NPUs."""
    found = []
    if part.source and part.nbytes:
        found.append(f"{part.source} → {part.host}")
    elif part.host:
        found.append(part.host)
    if part.replica:
        found.append(part.replica)
    if part.tokens:
        found.append(f"{part.tokens} token{'s' * (part.tokens != 1)}")
    if part.frames > 1:
        found.append(f"{part.frames} frames")
    if part.nbytes:
        rate = f" at {numbers.size(int(part.nbytes / part.seconds))}/s" if part.seconds > 0 else ""
        found.append(f"{numbers.size(part.nbytes)}{rate}")
    if part.predicted_s:
        found.append(f"real NPUs: {numbers.duration(part.predicted_s)}")
    return ", ".join(found)


def choice_table(choice: ChoiceLine, total_s: float) -> Table:
    """Parts of a choice in order; if there are very many, their sums by kind."""
    note = f"{len(choice.parts)} parts; their sum is {numbers.duration(sum(part.seconds for part in choice.parts))}."
    if len(choice.parts) <= MOST_ROWS:
        rows = [
            (part.kind, numbers.duration(part.start_s), numbers.duration(part.seconds), _share(part.seconds, total_s),
             details(part))
            for part in choice.parts
            if part.seconds >= _SHOWN_S
        ]  # fmt: skip
        return table_of(
            columns("part", "begins", "takes", "share", "where and what", text=("where and what",)), rows, note
        )
    sums = [
        (kind, numbers.duration(seconds), _share(seconds, total_s))
        for kind, seconds in seconds_by_kind(choice.parts).items()
    ]
    return table_of(columns("part", "takes", "share"), sums, note)


def print_times(times: RequestTimes) -> None:
    """Print one request to standard output."""
    console = table_console()
    console.print(f"{times.request_id}\n  {head_line(times)}\n  {times.cause}", markup=False, highlight=False)
    for choice in times.choices:
        if len(times.choices) > 1:
            console.print(f"  choice {choice.index}: {choice.tokens} tokens", markup=False, highlight=False)
        table = choice_table(choice, times.total_s)
        console.print(terminal_table(table, console.width))
        console.print(f"  {table.note}", markup=False, highlight=False)
    console.print()


def _share(seconds: float, total_s: float) -> str:
    return numbers.share(seconds / total_s) if total_s > 0 else ""
