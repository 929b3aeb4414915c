"""A server to send to, and the command as a user runs it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadgen.cli.main import main
from loadgen.selftest.ceiling import BlastServer, start_blast_server

Run = Callable[..., int]


@pytest.fixture(scope="session")
def server() -> Iterator[BlastServer]:
    """Evenly paced: 5 ms to the first token, 200 tokens/s."""
    with start_blast_server("paced", ttft_s=0.005, tokens_per_s=200) as running:
        yield running


@pytest.fixture
def loadgen_run(server: BlastServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`loadgen run` against that server, with small prompts, in a folder of its own; gives the exit status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    def run(*flags: str, url: str = server.url) -> int:
        return main(["run", "--url", url, "--input-len", "16", "--output-len", "5", "--pause", "0", "--quiet", *flags])

    return run
