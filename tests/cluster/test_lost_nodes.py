"""Reports of nodes that Ray has declared dead, and their time."""

import threading

from serving.cluster.nodes import ALONE_PERIOD_S, POLL_PERIOD_S, LostNodeWatch
from serving.ids import NodeId
from tests.cluster.node_case import listed


def test_news_is_told_once() -> None:
    rows, told = [listed("a"), listed("b")], list[frozenset[NodeId]]()
    watch = LostNodeWatch(told.append, lambda: rows)
    watch.look()
    assert told == []
    assert watch.pause_s == POLL_PERIOD_S
    rows[1] = listed("b", alive=False)
    for _ in range(2):
        watch.look()
    assert told == [{"b"}]
    assert watch.pause_s == ALONE_PERIOD_S, "the last one is the watcher's own"
    rows[0] = listed("a", alive=False)
    del rows[1]  # Ray forgets the dead in the end
    watch.look()
    assert told[1:] == [{"a"}]


def test_a_ray_that_fails_is_asked_again() -> None:
    answers, told = [RuntimeError("away"), None], threading.Event()

    def listing() -> list[dict[str, object]]:
        if answers.pop(0) is not None:
            raise RuntimeError
        return [listed("a", alive=False)]

    watch = LostNodeWatch(lambda _: told.set(), listing, period_s=0.001)
    watch.start()
    assert told.wait(30.0)
    watch.stop()
