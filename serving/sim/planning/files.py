"""A plan as files: Markdown, one self-contained page, JSON for programs. The same plan gives the same bytes."""

import importlib.resources
from pathlib import Path

import msgspec
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from serving.sim.planning import words
from serving.sim.planning.plan import Plan
from serving.sim.report.result_json import make_folder, plain, write_file
from serving.version import VERSION

SCHEMA = "cloudmatrix-plan/1"


def write_all(plan: Plan, folder: Path) -> list[Path]:
    """Write plan.md, plan.html and plan.json into a folder. Returns: the files.

    Raises: ConfigError if it cannot be written.
    Effects: makes the folder if there is none.
    """
    make_folder(folder)
    contents = {"plan.md": markdown(plan).encode(), "plan.html": page(plan).encode(), "plan.json": as_json(plan)}
    for name, content in contents.items():
        write_file(folder / name, content)
    return [folder / name for name in contents]


def as_json(plan: Plan) -> bytes:
    """The document: fields of `Plan`, SI units; what is not finite is null."""
    return msgspec.json.encode({"schema": SCHEMA, **plain(plan)}) + b"\n"


def markdown(plan: Plan) -> str:
    """The answer, a table, and why the others lose."""
    lines = ["# Plan", "", f"**{words.headline(plan)}**", ""]
    lines += [f"- {name}: {text}" for name, text in words.facts(plan)]
    lines += ["", _cells(words.HEADS), _cells(["---", *["---:"] * (len(words.HEADS) - 1)])]
    rows = words.rows(plan)
    lines += [_cells(row.cells) for row in rows]
    lines += ["", words.LEGEND, "", "## Why", ""]
    for row in rows:
        lines.append(f"- {row.cells[0]} ({row.limits}){', the best' if row.best else ''}: {row.why}")
    if plan.dropped:
        lines += ["", "## Not simulated on the whole trace", ""]
        lines += [f"- {one.what}: {one.why}" for one in words.dropped(plan)]
    return "\n".join(lines) + "\n"


def page(plan: Plan) -> str:
    """HTML that needs nothing else; its own content security policy forbids every request."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    template = environment.from_string(_asset("serving.sim.planning", "plan.html.j2"))
    return template.render(
        css=Markup(_asset("serving.sim.report", "report.css")), headline=words.headline(plan), facts=words.facts(plan),
        heads=words.HEADS, legend=words.LEGEND, rows=words.rows(plan), plot=Markup(words.plot(plan)),
        dropped=words.dropped(plan), name=plan.name, version=VERSION,
    )  # fmt: skip


def _asset(package: str, name: str) -> str:
    return (importlib.resources.files(package) / "assets" / name).read_text(encoding="utf-8")


def _cells(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(one.replace('|', '/') for one in cells)} |"
