"""`kill -9` of a gateway that generates: a background response loses and doubles no event, a batch no line."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.api.killed_gateways import rounds, run_batch
from tests.kvpool.redis_process import RedisProcess, needs_redis

pytestmark = needs_redis


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    redis = RedisProcess(tmp_path)
    redis.start()
    yield redis.url
    redis.end()


def test_a_killed_gateways_response_is_continued(model_folder: Path, redis_url: str) -> None:
    outcomes = rounds(model_folder, redis_url, 1, seed=1, at_once=3)
    assert all(0 < one.before < len(one.events) for one in outcomes)


def test_a_killed_gateways_batch_is_continued(model_folder: Path, redis_url: str) -> None:
    found, expected = run_batch(model_folder, redis_url, kills=1)
    assert found == expected, "no line is lost or doubled, and each has the text of its seed"
