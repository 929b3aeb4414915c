"""`kill -9` of a gateway that generates a background response: no event is lost or doubled."""

from pathlib import Path

from tests.gateway.api.killed_gateways import rounds
from tests.kvpool.redis_process import RedisProcess, needs_redis

pytestmark = needs_redis


def test_a_killed_gateways_response_is_continued(model_folder: Path, tmp_path: Path) -> None:
    redis = RedisProcess(tmp_path)
    redis.start()
    try:
        outcomes = rounds(model_folder, redis.url, 1, seed=1, at_once=3)
    finally:
        redis.end()
    assert all(0 < one.before < len(one.events) for one in outcomes)
