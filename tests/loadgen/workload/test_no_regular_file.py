"""Data sets, traces and texts that are no regular files are refused at once: a pipe without a writer never ends."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from loadgen.errors import UsageError
from loadgen.trace.lines import numbered_lines
from loadgen.trace.servegen import Client
from loadgen.trace.tables import AZURE, TableTrace
from loadgen.workload.datasets.sharegpt import entries
from loadgen.workload.lengths import lengths, read_histogram
from loadgen.workload.text_files import TextFiles
from loadgen.workload.words import Words

READERS: dict[str, Callable[[Path, Words], object]] = {
    "lines": lambda path, _: list(numbered_lines(path)),
    "a JSON list": lambda path, _: list(entries(path)),
    "an Azure trace": lambda path, _: list(TableTrace(path, AZURE).requests()),
    "a histogram": lambda path, _: read_histogram(path),
    "lengths of ServeGen": lambda path, _: Client(1, {}, path).lengths(0.0),
    "texts": lambda path, words: TextFiles((path,), words, lengths("9")).open(np.random.default_rng(0)),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("reader", READERS)
def test_pipes_and_devices(tmp_path: Path, words: Words, reader: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(UsageError, match="not a regular file"):
            READERS[reader](path, words)
