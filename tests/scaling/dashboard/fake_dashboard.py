"""Ray's own HTTP server with the page's module behind it, as in a cluster, but without one: run as a process.

    python -m tests.scaling.dashboard.fake_dashboard FOLDER    # prints its port, then serves until standard input ends

The server, its token, its refusal of browsers' POSTs, the module's process and the forwarding to it are Ray's.
FOLDER/wishes.json sets the behaviour of the fake system.
"""

import asyncio
import sys
from pathlib import Path

from ray.dashboard.dashboard_metrics import DashboardPrometheusMetrics
from ray.dashboard.http_server_head import HttpServerDashboardHead
from ray.dashboard.subprocesses.handle import SubprocessModuleHandle
from ray.dashboard.subprocesses.module import SubprocessModuleConfig

from serving.scaling.dashboard.answers import PoolsPort
from serving.scaling.dashboard.login import let_through
from serving.scaling.dashboard.module import PoolsHead
from tests.scaling.dashboard.fake_pools import FakePools


class FakePoolsHead(PoolsHead):
    """The module over a fake system."""

    gcs_client = None  # Ray reads every attribute of a module when it starts; these two would request a cluster
    aiogrpc_gcs_channel = None

    def port(self) -> PoolsPort:
        return FakePools(Path(self.session_dir) / "wishes.json")


async def serve(folder: Path) -> None:
    """Start the module, then the server; print the address; wait for the end of standard input."""
    config = SubprocessModuleConfig(
        cluster_id_hex="",
        gcs_address="127.0.0.1:1",
        session_name="fake",
        temp_dir=str(folder),
        session_dir=str(folder),
        logging_level="INFO",
        logging_format="%(message)s",
        log_dir=str(folder),
        logging_filename="dashboard.log",
        logging_rotate_bytes=0,
        logging_rotate_backup_count=0,
        socket_dir=str(folder),
    )
    SubprocessModuleHandle.preload_in_forkserver([FakePoolsHead])
    handle = SubprocessModuleHandle(asyncio.get_running_loop(), FakePoolsHead, config)
    handle.start_module()
    handle.wait_for_module_ready()
    let_through()
    metrics = DashboardPrometheusMetrics()
    server = HttpServerDashboardHead("127.0.0.1", "127.0.0.1", 0, 0, "127.0.0.1:1", "fake", metrics)
    await server.run([], [handle])
    print(server.get_address()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.cleanup()
    await handle.destroy_module()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
