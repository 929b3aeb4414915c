"""Whole files that may come from others are read only after a check of their kind: a pipe would never end."""

import ast
from collections.abc import Sequence

from tests.architecture.source_tree import Source, read_sources

READERS = frozenset({"read_text", "read_bytes"})
LOOKS = ("hardware.regular_file", "serving.regular_file", "loadgen.regular_file")
OUR_OWN = {
    "loadgen.report.page": "the package's assets",
    "loadgen.driver.machine": "/proc",
    "serving.gateway.api.pages.document": "the package's assets",
    "serving.tools.chaos.own_system": "the log of the system that it started",
    "serving.tools.chaos.machines": "/proc",
    "serving.tools.chaos.targets": "/proc",
    "serving.compiled": "the package's sources",
    "serving.scaling.dashboard.answers": "the package's assets",
    "serving.launch.agent_keeper": "the start's session folder",
    "serving.gateway.live.fingerprint": "looks itself",
    "serving.scaling.core.holds": "the start's session folder",
    "serving.scaling.core.ledger": "the start's session folder",
    "serving.cluster.session": "the start's session folder",
    "loadgen.server_address": "the start's session folder",
    "serving.model.image": "the configuration, which was read before",
    "serving.model.native.panel_layout": "/sys",
    "serving.launch.patience": "/proc",
    "serving.launch.machine": "/proc, /sys",
    "serving.launch.machine_checks": "/proc",
    "serving.launch.worker_seed": "/proc",
    "serving.model.native.build": "the package's sources",
    "serving.faults.injected": "looks itself",
    "serving.tools.compilation.build": "the log of the compiler that it started",
}


def blind(sources: Sequence[Source]) -> list[str]:
    """Reads of a whole file in modules that do not import the check."""
    return [
        f"{source.path}:{node.lineno}"
        for source in sources
        if source.module not in (*LOOKS, *OUR_OWN)
        and not any(name.startswith(look) for name in source.imports for look in LOOKS)
        for node in source.nodes(ast.Attribute)
        if node.attr in READERS
    ]


def test_every_reader_looks_first() -> None:
    sources = read_sources("hardware", "serving", "loadgen")
    assert blind(sources) == []
    assert OUR_OWN.keys() <= {source.module for source in sources}


def test_the_checker_sees_who_does_not_look() -> None:
    bad = Source("a.py", "a", "from pathlib import Path\n\ndef read(path: Path) -> str:\n    return path.read_text()\n")
    good = Source("b.py", "b", "from loadgen.regular_file import check_regular\nread = Path('x').read_text()\n")
    assert blind([bad, good]) == ["a.py:4"]
