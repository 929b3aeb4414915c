"""The console that commands print their tables on."""

import os
import subprocess
import sys

import pytest

from serving.terminal import PLAIN_WIDTH, table_console

PRINTING = """
import sys
from serving import decisions_command, status_table
from serving.cli import main

class System:
    def decisions(self, pool, after):
        words = dict.fromkeys(("pool", "kind", "by", "reason"), "")
        return [{"id": 1, "at": 0, "before": 1, "target": 2, **words}]

decisions_command.system_of = lambda _: System()
status_table.fetch_status = lambda url, _: {"many": list(range(int(url)))}
sys.exit(main([*sys.argv[1:], "--json"]))
"""
"""Two commands over systems that are not there."""


def test_a_pipe_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert table_console().width == PLAIN_WIDTH
    monkeypatch.setenv("COLUMNS", "240")
    assert table_console().width == 240


@pytest.mark.parametrize(
    "command", [["decisions", "--follow"], ["status", "--url", "100000"], ["status", "--url", "1"]]
)
def test_whoever_read_the_output_may_be_gone(command: list[str]) -> None:
    """`cloudmatrix decisions --follow | head -1` ends as other commands end: without a word, as if by SIGPIPE."""
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(
        [sys.executable, "-c", PRINTING, *command], stdout=writing, stderr=subprocess.PIPE, timeout=50, check=False
    )
    os.close(writing)
    assert (process.returncode, process.stderr) == (141, b"")
