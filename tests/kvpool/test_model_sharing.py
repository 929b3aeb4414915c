"""Replicas and a memory server in separate processes: one copy of the weights for all replicas."""

from pathlib import Path

import pytest

from tests.kvpool.model_replica import mapped_pss, replica
from tests.kvpool.pool_cluster import PoolCluster
from tests.model.random_checkpoint import write_random_checkpoint

MIB = 1 << 20


@pytest.mark.nightly("tests/kvpool/test_model_cache.py::test_what_one_stores_another_maps")
@pytest.mark.timeout(120)
def test_replicas_share_one_copy_that_outlives_its_server(tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path / "model", kind="tiny")
    with replica(folder) as fresh:
        expected = fresh.ask("logits")
        alone = fresh.private_bytes
    assert alone > 20 * MIB
    with PoolCluster(capacity_bytes=128 * MIB) as pool, replica(folder, pool.view(), version="1") as first:
        assert first.read > 0
        for path in folder.glob("*.safetensors"):
            path.unlink()
        with replica(folder, pool.view(), version="1") as second:
            assert second.read == 0
            assert second.private_bytes < 0.2 * alone
            assert [one.ask("logits") for one in (first, second)] == [expected] * 2
            shared = [mapped_pss(one.pid, str(pool.segments)) for one in (first, second)]
            assert (
                min(shared) > 0
            )  # each page is counted once, for all processes that map it: the server has its part, too
            assert sum(shared) <= 1.1 * alone
            assert first.private_bytes < 0.5 * alone  # what reading left on its heap; no weights
            pool.kill(0)
            assert [one.ask("logits") for one in (first, second)] == [expected] * 2
