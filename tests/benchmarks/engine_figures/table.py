"""The figures as Markdown: the goals with the results, the rates behind them, the conditions."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.benchmarks.engine_figures.book import Book, Shape
from tests.benchmarks.engine_figures.goals import Row, shorten


def goals_table(rows: Sequence[Row]) -> str:
    """One line per figure: what, measured, goal, verdict, origin."""
    lines = ["| what | measured | goal | | how |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        value = "" if row.value is None else f"{row.value:#.4g}"
        lines.append(f"| {row.goal.what} | {value} | {row.goal} | {row.verdict} | {_cell(row.detail)} |")
    return "\n".join(lines)


def rates_table(book: Book) -> str:
    """Tokens per second: one line per engine, one column per shape; absent engines with the reason."""
    shapes = book.shapes()
    if not shapes:
        return "Nothing was measured in tokens per second."
    lines = ["| tokens/s | " + " | ".join(_title(shape) for shape in shapes) + " |"]
    lines.append("| --- |" + " --- |" * len(shapes))
    for engine in book.engines():
        rates = [book.best(engine, shape) for shape in shapes]
        if any(rate is not None for rate in rates):
            cells = ["–" if rate is None else shorten(rate) for rate in rates]
            lines.append(f"| {engine} | " + " | ".join(cells) + " |")
    lines += ["", *(f"- absent: {engine}: {_cell(reason)}" for engine, reason in book.absent.items())]
    return "\n".join(lines).rstrip()


def conditions_list(found: Mapping[str, Any]) -> str:
    """One line per condition."""
    return "\n".join(f"- {name.replace('_', ' ')}: {value}" for name, value in found.items())


def as_json(rows: Sequence[Row], book: Book, found: Mapping[str, Any]) -> dict[str, Any]:
    """All figures as plain values."""
    figures = [
        {
            "what": one.goal.what,
            "value": one.value,
            "goal": one.goal.bound,
            "verdict": one.verdict,
            "detail": one.detail,
        }
        for one in rows
    ]
    return {"benchmark": "engine_figures", "conditions": dict(found), "figures": figures, "book": book.as_json()}


def _title(shape: Shape) -> str:
    return f"{shape.model} {shape.phase} {shape.size:,}"


def _cell(text: str) -> str:
    """Text that cannot end its cell."""
    return text.replace("|", "/").replace("\n", " ")
