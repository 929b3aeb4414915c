"""SECURITY.md's statement about Serve's gRPC server in each replica, checked against the installed Ray."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ray.serve._private import replica

ROOT = Path(__file__).parents[2]
INTERCEPTORS = """
from ray._private.grpc_utils import create_grpc_server_with_interceptors
import grpc
def server(*arguments, interceptors=None, **options):
    print(len(interceptors or ()))
grpc.aio.server = server
create_grpc_server_with_interceptors(asynchronous=True)
"""


@pytest.mark.parametrize(("mode", "asks"), [("token", True), ("", False)])
def test_serve_s_server_in_a_replica_asks_for_the_token_where_ray_does(mode: str, asks: bool) -> None:
    assert "create_grpc_server_with_interceptors(" in inspect.getsource(replica)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    own = {"RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": "0123456789abcdef"} if mode else {}
    told = subprocess.run(
        [sys.executable, "-c", INTERCEPTORS], env={**kept, **own}, cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert told.stdout.split() == ["1" if asks else "0"]


def test_the_page_says_so() -> None:
    (row,) = [line for line in (ROOT / "SECURITY.md").read_text().splitlines() if "Serve's gRPC server" in line]
    assert "holders of Ray's token" in row
    assert "without that mode it requires no token" in row
