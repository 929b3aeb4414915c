"""Ray's own processes die under load: running requests continue, and the processes are back in a stated time."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.deaths import BACK_S, SLOW_STEPS, kill_under_load, pid_of, pids_of, wait_for_the_dashboard
from tests.e2e.scaled import Scaled
from tests.e2e.server import STOP_S, wait_for
from tests.e2e.topology import small

SAME = "tests/e2e/test_two_nodes.py::test_rays_parts_die_at_once"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.nightly(SAME)]

POOL = "\n[kvcache]\nreplicas = 1\nub_memory_mib = 8\nssd_mib = 0\nslab_kib = 64\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[Scaled]:
    config = small(tmp_path_factory.mktemp("config"), checkpoint, prefill=1, decode=2)
    config.write_text(config.read_text() + SLOW_STEPS + POOL)
    with Scaled(config) as running:
        yield running
        took = running.interrupt()
        running.assert_nothing_left()
        assert took < STOP_S


def replace_a_decode_instance(server: Scaled) -> float:
    """Kill a decode instance and wait until another one serves. Returns: the duration [s]."""
    begun = time.monotonic()
    gone = server.replicas("decode")[0]
    os.kill(gone["pid"], signal.SIGKILL)

    def back() -> bool:
        listed = {replica["replica"] for replica in server.replicas("decode")}
        return len(listed) == 2 and gone["replica"] not in listed

    wait_for(back, "it is replaced", BACK_S, server.cluster)
    return time.monotonic() - begun


def test_serves_controller_dies(server: Scaled) -> None:
    kill_under_load(server, 1, "ServeController")
    replace_a_decode_instance(server)
    server.wait_idle()


def test_the_gcs_dies(server: Scaled) -> None:
    before = pids_of(server, "gcs_server")
    kill_under_load(server, 2, "gcs_server")
    wait_for(lambda: pids_of(server, "gcs_server") not in ([], before), "there is another one", BACK_S)
    replace_a_decode_instance(server)
    wait_for_the_dashboard(server)
    server.wait_idle()


def test_the_agents_and_the_dashboard_die(server: Scaled) -> None:
    monitor = "autoscaler/_private/monitor.py"
    titles = ("ray::DashboardAgent", "ray::RuntimeEnvAgent", "dashboard/dashboard.py", monitor)
    wait_for(lambda: all(pids_of(server, title) for title in titles), "all are there", BACK_S, server.processes)
    before = {title: pid_of(server, title) for title in titles}
    raylet = pid_of(server, "raylet/raylet")
    kill_under_load(server, 8, *titles)
    for title in titles:
        wait_for(lambda: pids_of(server, title) not in ([], [before[title]]), f"{title} is back", BACK_S)  # noqa: B023
    assert pid_of(server, "raylet/raylet") == raylet
    replace_a_decode_instance(server)  # which needs the agent of its environment
    wait_for_the_dashboard(server)
    server.wait_idle()
