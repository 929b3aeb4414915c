"""Hosts made of namespaces, for tests: created with the command line of `deploy/hosts/hosts.py`."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "hosts" / "hosts.py"


@dataclass(frozen=True)
class Hosts:
    """A network of running hosts. `addresses` by name."""

    network: str
    addresses: dict[str, str]

    def command(self, host: str, *command: str) -> list[str]:
        """Command line that runs in a host, for `subprocess.Popen`."""
        python = (sys.executable, "-I", "-S")  # without packages: it is started for every poll of a host
        return [*python, str(SCRIPT), "--network", self.network, "run", host, "--", *command]

    def run(self, host: str, *command: str, timeout: float = 120.0, check: bool = True) -> str:
        """Run a command in a host. Returns: its output, including stderr."""
        done = subprocess.run(
            self.command(host, *command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout
        )
        assert not check or done.returncode == 0, f"{command} in {host} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def get(self, host: str, url: str, timeout: float = 30.0) -> dict[str, object]:
        """JSON that a host receives from a URL."""
        code = "import sys, urllib.request as r; sys.stdout.write(r.urlopen(sys.argv[1], timeout=20).read().decode())"
        found: dict[str, object] = json.loads(self.run(host, sys.executable, "-c", code, url, timeout=timeout))
        return found

    def does(self, action: str, *names: str) -> None:
        """Apply `up`, `cut`, `join`, `freeze`, `thaw` or `kill` to hosts."""
        done = subprocess.run(
            [sys.executable, str(SCRIPT), "--network", self.network, action, *names], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


@contextmanager
def hosts(*names: str) -> Iterator[Hosts]:
    """Hosts with these names, ended with the block. Skips the test if the machine does not allow namespaces."""
    network = f"test-{os.getpid()}-{names[0]}"
    up = subprocess.run(
        [sys.executable, str(SCRIPT), "--network", network, "up", *names], capture_output=True, text=True
    )
    try:
        if up.returncode:
            pytest.skip(up.stderr.strip())
        yield Hosts(network, dict(line.split() for line in up.stdout.splitlines()))
    finally:
        subprocess.run([sys.executable, str(SCRIPT), "--network", network, "down"], check=True)
