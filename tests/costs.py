"""What a run of the tests cost: wall seconds, processor seconds and started systems of each file.

pytest --costs=build/costs.json      # records them
python -m tests.costs build/costs.json      # writes the table in tests/README.md; `make costs` does both
"""

import ast
import json
import resource
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PAGE = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- costs: begin -->", "<!-- costs: end -->"
EXPENSIVE_S = 4.0
"""Files that cost less together share one row."""
_systems: list[str] = []
"""Systems that this process has started; see `count_system`."""


def count_system(what: str) -> None:
    """Record the start of a real system, a Ray cluster with our deployments, for the running test."""
    _systems.append(what)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", metavar="FILE", help="write what each test cost to this JSON file")


class Recorder:
    """Collects the cost of each phase of each test, in the process that reports."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._phases: list[dict[str, object]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cost = {"cpu_s": getattr(report, "cpu_s", 0.0), "systems": getattr(report, "systems", [])}
        self._phases.append({"test": report.nodeid, "phase": report.when, "wall_s": report.duration, **cost})

    def pytest_sessionfinish(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._phases))


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--costs")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(path)))


_spent_s = 0.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Record the cost of the phase in the report; xdist carries attributes of reports."""
    global _spent_s
    report: pytest.TestReport = yield  # type: ignore[assignment]
    now_s = _processor_s()
    report.cpu_s = round(now_s - _spent_s, 3)  # type: ignore[attr-defined]
    report.systems = _systems.copy()  # type: ignore[attr-defined]
    _spent_s = now_s
    _systems.clear()
    return report  # type: ignore[return-value]


def _processor_s() -> float:
    """Processor time of this process and of its children that have ended [s]."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


@dataclass
class FileCost:
    """Sums over the tests of a file."""

    tests: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    systems: int = 0

    def add(self, phase: dict[str, object]) -> None:
        self.tests += phase["phase"] == "call"
        self.wall_s += float(phase["wall_s"])  # type: ignore[arg-type]
        self.cpu_s += float(phase["cpu_s"])  # type: ignore[arg-type]
        self.systems += len(phase["systems"])  # type: ignore[arg-type]


def by_file(phases: list[dict[str, object]]) -> dict[str, FileCost]:
    """Costs by file, the most expensive first."""
    found: dict[str, FileCost] = defaultdict(FileCost)
    for phase in phases:
        found[str(phase["test"]).partition("::")[0]].add(phase)
    return dict(sorted(found.items(), key=lambda item: -item[1].wall_s))


def guarantee(path: Path) -> str:
    """First sentence of a test file's docstring: what its tests guarantee."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


def table(costs: dict[str, FileCost]) -> str:
    """Markdown table of the files that cost most, and one row for all others."""
    rows = ["| file | tests | wall s | CPU s | systems | guarantee |", "| --- | ---: | ---: | ---: | ---: | --- |"]
    others = FileCost()
    for path, cost in costs.items():
        if cost.wall_s < EXPENSIVE_S and not cost.systems:
            others.tests, others.wall_s = others.tests + cost.tests, others.wall_s + cost.wall_s
            others.cpu_s += cost.cpu_s
            continue
        figures = f"{cost.tests} | {cost.wall_s:.0f} | {cost.cpu_s:.0f} | {cost.systems or ''}"
        rows.append(f"| {path} | {figures} | {guarantee(Path(path))} |")
    rows.append(f"| all other files | {others.tests} | {others.wall_s:.0f} | {others.cpu_s:.0f} | | |")
    total = [sum(getattr(cost, name) for cost in costs.values()) for name in ("tests", "wall_s", "cpu_s", "systems")]
    rows.append("| **sum** | {} | {:.0f} | {:.0f} | {} | |".format(*total))
    return "\n".join(rows)


def main() -> None:
    """Write the table of recorded runs into the page."""
    phases = [phase for path in sys.argv[1:] for phase in json.loads(Path(path).read_text())]
    shown = table(by_file(phases))
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{shown}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
