"""Long timeouts of clients and memory servers under test: a busy machine is no failure.

Tests of the timeouts themselves set them.
"""

import pytest

from serving.gateway.live import pool_admin
from serving.kvpool.core import server_backoff
from serving.kvpool.live import model_peer

PATIENCE_S = 60.0


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengthen, for one test, what a client of the pool waits for a server that lives."""
    monkeypatch.setattr(server_backoff, "CONNECT_S", PATIENCE_S)
    monkeypatch.setattr(model_peer, "REPLY_S", PATIENCE_S)
    monkeypatch.setattr(model_peer, "CHUNK_S", PATIENCE_S)
    monkeypatch.setattr(pool_admin, "USAGE_DEADLINE_S", PATIENCE_S)
