"""Memory of weights that remains mapped after their server has ended."""

import os
from typing import Any

import pytest

from serving.errors import PoolTimeoutError
from serving.ids import NodeId
from serving.kvpool.core.messages import Data, Hold, Message, Stats
from serving.kvpool.live.model_cache import ModelCache
from serving.kvpool.live.model_peer import soon
from serving.kvpool.live.server_link import ServerLink, hello_of
from tests.kvpool.model_images import MIB, SIZE, content, filling, loaded
from tests.kvpool.pool_cluster import PoolCluster


@pytest.mark.parametrize("killed", [True, False])
def test_a_server_that_has_gone_leaves_no_memory_but_for_weights_that_are_mapped(killed: bool) -> None:
    with PoolCluster() as pool:
        cache = ModelCache("test", NodeId("n0"), "secret", pool.view)
        assert cache.store("m@1", SIZE, filling(1))
        image = loaded(cache, "m@1")
        fd = os.open(pool.process(0).record.segment, os.O_RDONLY)
        if killed:
            pool.kill(0)
        else:
            pool.stop(0)
        pool.replace(0)
        left = os.fstat(fd)
        assert left.st_nlink == 0
        assert left.st_blocks * 512 < SIZE + MIB, "its successor needs the rest"
        assert image.data == content(1)
        os.close(fd)
        cache.close()


def test_weights_that_nobody_maps_any_more_keep_no_descriptor() -> None:
    with PoolCluster() as pool:
        cache = ModelCache("test", NodeId("n0"), "secret", pool.view)
        assert cache.store("m@1", SIZE, filling(1))
        loaded(cache, "m@1").release()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            loaded(cache, "m@1").release()
        assert len(os.listdir("/proc/self/fd")) == before
        cache.close()


def test_a_hold_whose_answer_was_lost_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = ServerLink.ask

    def losing(link: ServerLink, kind: type[Any], message: Message, *rest: Any) -> Any:
        answer = ask(link, kind, message, *rest)
        if isinstance(message, Hold):
            link.close()
            raise PoolTimeoutError("the answer was lost")
        return answer

    with PoolCluster() as pool:
        cache = ModelCache("test", NodeId("n0"), "secret", pool.view)
        assert cache.store("m@1", SIZE, filling(1))
        with monkeypatch.context() as patch:
            patch.setattr(ServerLink, "ask", losing)
            assert cache.load("m@1") is None
        reader = ServerLink(pool.process(0).record, hello_of("reader", NodeId("n0"), "secret"))
        assert reader.ask(Data, Stats(), soon()).value["holds"] == 0, "it could never be evicted"
        reader.close()
        image = loaded(cache, "m@1")
        assert image.data == content(1)
        cache.close()
