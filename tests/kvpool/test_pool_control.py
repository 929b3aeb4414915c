"""The controller on a real Ray, embedded and with a real Redis; and which failures cause a warning."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving.config import KvCacheConfig, ModelConfig, NamespaceConfig, ServeConfig
from serving.kvpool.live.pool_control import TROUBLE, Complaint, control_settings
from serving.kvpool.live.replica import shares_of
from serving.values.pool_view import NamespaceRecord, PoolView, ServerState, ViewServer
from tests.kvpool.pool_records import server_record
from tests.kvpool.redis_process import REDIS_SERVER, RedisProcess

REPOSITORY = Path(__file__).resolve().parents[2]


CASE = """
import sys
from serving.cluster.session import enter
session = enter()  # before Ray is imported
from tests.kvpool.pool_control_case import run
run(session, sys.argv[1:])
print("all is well")
"""


def run_case(*directories: str) -> None:
    """Run on one Ray, a pool for each directory, one after the other."""
    command = [sys.executable, "-c", CASE, *directories]
    environment = {**os.environ, "TMPDIR": "/tmp"}  # short: socket paths have a limit
    ended = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.endswith("all is well\n")


@pytest.mark.slow
@pytest.mark.nightly("tests/e2e/test_aggregated.py::test_the_gcs_dies_and_redis_remembers")
def test_the_controller_embedded_and_with_a_redis(tmp_path: Path) -> None:
    """Without an installed Redis, only the embedded one."""
    if REDIS_SERVER is None:
        assert "CI" not in os.environ, "CI must have redis-server"
        run_case("embedded")
        return
    server = RedisProcess(tmp_path)
    try:
        server.start()
        run_case("embedded", server.url)
        with server.client() as client:
            kept = client.hgetall("cloudmatrix:namespaces")
        assert list(kept) == [b"acme"]
        claims = {"retain_bytes": 0, "pin_bytes": 0, "max_ttl_s": 0.0}
        record = {"name": "acme", "quota_bytes": 7, "weight": 2.0, "over": [100, 1.0], "claims": claims}
        assert json.loads(kept[b"acme"]) == record
    finally:
        server.end()


def test_the_controller_is_told_what_the_configuration_says() -> None:
    config = ServeConfig(
        ModelConfig(path=Path("m")),
        kvcache=KvCacheConfig(directory="redis://there", ramp_s=3.0),
        namespaces=(NamespaceConfig("acme", ("key",), 2), NamespaceConfig("free")),
    )
    settings = control_settings(config, "s")
    assert (settings.session, settings.directory, settings.ramp_s) == ("s", "redis://there", 3.0)
    assert settings.namespaces == (NamespaceRecord("acme", 2 << 20), NamespaceRecord("free"))


def test_a_servers_share_of_quotas_follows_its_weight() -> None:
    namespaces = (NamespaceRecord("acme", 900), NamespaceRecord("free"))
    view = PoolView(
        "1",
        (
            ViewServer(server_record("a"), 1.0),
            ViewServer(server_record("b"), 0.5),
            ViewServer(server_record("c", state=ServerState.DRAINING), 0.0),
        ),
        namespaces,
    )
    shares = {name: [one.quota_bytes for one in shares_of(view, name)] for name in "abcd"}
    assert shares == {"a": [600, 0], "b": [300, 0], "c": [0, 0], "d": [0, 0]}


def test_one_warning_per_trouble(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    complaint = Complaint("no answer")
    for _ in range(TROUBLE - 1):
        complaint.make(TimeoutError())
    complaint.over()
    assert not caplog.records, "a lost call is no trouble"
    for _ in range(5):
        complaint.make(TimeoutError())
    complaint.over()
    complaint.over()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
