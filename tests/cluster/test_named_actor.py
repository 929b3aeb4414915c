"""Named actors end: `down` kills again those that return, until none does."""

from collections.abc import Callable

import pytest

from serving.cluster.named_actor import QUIET_S, TAKEN_S, end_actors
from serving.errors import SilentError


class Cluster:
    """Actors that are listed at times [s]; waits advance the time."""

    def __init__(self, listed: Callable[[float], list[str]]) -> None:
        self.now, self.killed, self._listed = 0.0, list[str](), listed

    def end(self) -> list[str]:
        return end_actors(lambda: self._listed(self.now), self.killed.append, lambda: self.now, self._pause)

    def _pause(self, seconds: float) -> None:
        self.now += seconds


def test_an_actor_that_comes_back_is_killed_again() -> None:
    cluster = Cluster(lambda now: {0: ["board", "pool control"], 2: ["pool control"]}.get(int(now), []))
    assert cluster.end() == ["board", "pool control"]
    assert cluster.killed[-1] == "pool control"
    assert cluster.now == pytest.approx(3.0 + QUIET_S, abs=0.2), "nothing came for so long"


def test_an_actor_that_never_ends_is_named() -> None:
    cluster = Cluster(lambda _: ["board"])
    with pytest.raises(SilentError, match="board did not stop"):
        cluster.end()
    assert cluster.now > TAKEN_S


def test_where_no_system_is_nothing_is_waited_for() -> None:
    cluster = Cluster(lambda _: [])
    assert (cluster.end(), cluster.killed, cluster.now) == ([], [], 0.0)
