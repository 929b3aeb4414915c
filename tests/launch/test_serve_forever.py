"""However serving ends, its processes are ended, and its files are removed."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.cluster.session import SystemSession
from serving.config.model import ModelConfig
from serving.config.serve import ServeConfig
from serving.launch import launch
from serving.launch.deploying import StartError
from serving.launch.launch import Interrupt, serve_forever

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class FakeCluster:
    """Records how it was stopped."""

    def __init__(self) -> None:
        self.logs_kept: list[bool] = []
        self.starting: Callable[..., None] = lambda *_: None
        self.while_stopping: Callable[[], None] = lambda: None

    def stop(self, *, keep_logs: bool = False) -> None:
        """Stop like `LocalCluster.stop`."""
        self.while_stopping()
        self.logs_kept.append(keep_logs)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    fake = FakeCluster()
    fakes = {
        "LocalCluster": lambda *_: fake,
        "banner": lambda *_, **__: "ready",
        "_start": lambda *given: fake.starting(*given),
        "_tend": lambda *_: None,
    }
    for name, other in fakes.items():
        monkeypatch.setattr(launch, name, other)
    before = {kind: signal.getsignal(kind) for kind in ENDING}
    yield fake
    for kind, handler in before.items():
        signal.signal(kind, handler)


def serve() -> int:
    """Serve with the test's replacements of starting and tending."""
    config = ServeConfig(ModelConfig(Path("somewhere")))
    return serve_forever(config, SystemSession("abc123", Path("nowhere"), "token"))


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_an_end_that_was_asked_for(cluster: FakeCluster) -> None:
    assert serve() == 0
    assert cluster.logs_kept == [False]


def test_whoever_read_the_output_may_be_gone(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cloudmatrix serve | tee log`: Ctrl-C ends `tee` too, and mostly before this process reports that it stops."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as broken:
        monkeypatch.setattr(sys, "stdout", broken)
        code = serve()
    assert code == 0
    assert cluster.logs_kept == [False]


def test_an_error_that_nobody_thought_of(cluster: FakeCluster) -> None:
    cluster.starting = raising(LookupError("no such thing"))
    with pytest.raises(LookupError):
        serve()
    assert cluster.logs_kept == [True]


def test_impatience_with_a_start_that_failed(cluster: FakeCluster) -> None:
    """Ctrl-C during the cleanup only ends the wait."""

    def start(_config: object, _cluster: object, interrupt: Interrupt, _phases: object) -> None:
        interrupt.raise_now()
        raise StartError("no luck")

    cluster.starting = start
    cluster.while_stopping = lambda: os.kill(os.getpid(), signal.SIGINT)
    assert serve() == 2
    assert cluster.logs_kept == [True]
