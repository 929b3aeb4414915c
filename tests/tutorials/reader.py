"""A reader: one shell that runs a tutorial's commands, and the system that they use."""

import os
import shlex
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.e2e.server import Server
from tests.pages import ROOT
from tests.tutorials.page import FOLDER, Block, blocks

PRINTED_URL = "http://127.0.0.1:8000"
"""What pages call the system."""
PATIENCE_S = 500.0
"""Time limit of one block. Generous: these tests may get the processor only when it is idle. A test may take longer, so
that the hanging block can be reported.
"""
_LOG_TAIL = 1_500
_PRELUDE = """
set -euo pipefail
cloudmatrix() {
    case "$1" in
        status | chat) command cloudmatrix "$@" --url "$SYSTEM" ;;
        *) command cloudmatrix "$@" ;;
    esac
}
loadgen() {
    case "$1" in
        run) command loadgen "$@" --url "$SYSTEM" ;;
        *) command loadgen "$@" ;;
    esac
}
deploy/hosts/hosts.py() { command deploy/hosts/hosts.py --network "$NETWORK" "$@"; }
"""


def work_folder(name: str) -> tempfile.TemporaryDirectory[str]:
    """An empty folder for a tutorial; hosts made of namespaces each have a separate /tmp."""
    return tempfile.TemporaryDirectory(dir="/var/tmp" if name == "hosts" else None)


class Reader:
    """Runs blocks as they are given. A folder replaces the checkout, so that no files are written there.

    Args:
        folder: where commands run; it gets links to the repository's top-level entries.
        system: a running one, for `make serve`; None = one is started.
        network: of hosts made of namespaces, next to others on this machine.
        patience_s: for one block.
    """

    def __init__(
        self, folder: Path, system: Server | None = None, network: str = "tutorial", patience_s: float = PATIENCE_S
    ) -> None:
        self._folder, self._system, self._given = folder, system, system is not None
        self._network, self._patience_s = network, patience_s
        self._owned = ExitStack()
        for name in ("deploy", "examples", "README.md"):
            (folder / name).symlink_to(ROOT / name)
        self._before: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._owned.close()

    def do(self, block: Block) -> str | None:
        """Run one. Returns: its standard output; None if it is not run."""
        if block.by_hand:
            return None
        if block.serves:
            self._serve(block.commands)
            return None
        return self._run(block.commands)

    def _serve(self, commands: str) -> None:
        words = shlex.split(commands)
        if words[:2] == ["make", "serve"] and self._given:
            return
        if words[0] == "make":
            given = (word.removeprefix("ARGS=").removeprefix("MODEL=") for word in words[2:])
            words = [*words[:2], *(part for text in given for part in shlex.split(text))]
        arguments = [str(self._folder / word) if (self._folder / word).exists() else word for word in words[2:]]
        config = ROOT / "deploy" / "small.toml"
        if "--config" in arguments:
            at = arguments.index("--config")
            config = Path(arguments[at + 1])
            del arguments[at : at + 2]
        self._owned.close()
        self._system = self._owned.enter_context(
            Server(config, *arguments, "--set", "cluster.dashboard_port=0", "--set", "engine.threads=1")
        )

    def _run(self, commands: str) -> str:
        """Run a command with the functions and variables of earlier blocks, as in a terminal."""
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"}
        environment |= {"COLUMNS": "120", "PYTHONPATH": str(ROOT), "SYSTEM": PRINTED_URL, "NO_COLOR": "1"}
        environment["NETWORK"] = self._network
        text = commands
        if self._system is not None:
            environment |= {"SYSTEM": self._system.url, "TMPDIR": str(self._system.folder)}
            text = text.replace(PRINTED_URL, self._system.url)
        try:
            done = subprocess.run(
                ["bash", "-c", "\n".join([_PRELUDE, *self._before, text])],
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=self._patience_s,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            told = f"{commands}{late.stdout!r}{self._logs()}"
            raise AssertionError(f"not done after {self._patience_s:g} s: {told}") from late
        assert done.returncode == 0, f"{commands}{done.stdout}{done.stderr}{self._logs()}"
        self._before += [line for line in text.splitlines() if _is_definition(line)]
        printed = done.stdout.replace(self._system.url, PRINTED_URL) if self._system is not None else done.stdout
        return "".join(f"{line.rstrip()}\n" for line in printed.splitlines())

    def _logs(self) -> str:
        """Last lines of the files that its commands wrote, for a failure."""
        files = sorted(self._folder.glob("*.log"))
        return "".join(f"\n--- {one.name}\n{one.read_text(errors='replace')[-_LOG_TAIL:]}" for one in files)


def _is_definition(line: str) -> bool:
    """Whether it defines only variables, including those from a command's output, or a function of one line."""
    name, equals, _ = line.partition("=")
    return (bool(equals) and name.isidentifier()) or line.startswith("eval ") or ("() {" in line and line.endswith("}"))


def go_through(name: str, system: Server | None = None, network: str = "") -> None:
    """Run all blocks of a tutorial, and compare."""
    with work_folder(name) as folder, Reader(Path(folder), system, network) as reader:
        for block in blocks(FOLDER / f"{name}.md"):
            printed = reader.do(block)
            assert printed is None or block.agrees(printed), f"{block.commands}{printed}"
