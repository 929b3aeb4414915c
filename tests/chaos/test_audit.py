"""What counts as at rest."""

from typing import Any

from serving.chaos.audit import REPLICA_COUNTS, busy


def status(**changes: int) -> dict[str, Any]:
    replica = {"replica": "decode#1", **dict.fromkeys(REPLICA_COUNTS, 0), "kv_blocks_cached": 7, **changes}
    server = {"name": "kvcache-0", "in_use": {"leased": changes.get("leased", 0), "writing": 0}}
    return {
        "gateway": {"running": changes.get("gateway", 0), "queued": 0},
        "pools": [{"name": "decode", "replicas": [replica]}],
        "kvcache": {"servers": [server]},
    }


def test_at_rest_nothing_is_busy() -> None:
    assert busy(status()) == {}


def test_every_count_is_looked_at() -> None:
    for name in REPLICA_COUNTS:
        assert busy(status(**{name: 2})) == {f"decode#1 {name}": 2}
    assert busy(status(gateway=1)) == {"gateway running": 1}
    assert busy(status(leased=3)) == {"kvcache-0 entries leased": 3}


def test_a_system_without_a_pool_has_no_servers() -> None:
    without = status()
    del without["kvcache"]
    assert busy(without) == {}
