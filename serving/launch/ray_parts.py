"""Parts of Ray beside its nodes and its GCS that the launcher keeps alive."""

import logging
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ray

from serving.launch import agent_keeper
from serving.terminal import ending_signals

logger = logging.getLogger(__name__)

HELPERS = ("dashboard", "log_monitor", "monitor")
"""Processes of a node, by Ray's names. Without the dashboard there is no scaling by page, REST or command line."""
RETRY_S = 5.0
"""Time between two tries to start what does not come up."""
RAYLET_DEADLINE_S = 30
_TOO_SLOW = ("timed out", "overloaded", "took too long")
"""In what Ray says of a start that failed: it may succeed if it is tried again."""
_AGENTS = ("--dashboard_agent_command=", "--runtime_env_agent_command=")


class _Started:
    """Ray's processes that this process has started and that may still run."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def add(self, process: subprocess.Popen[bytes]) -> None:
        self.processes = [known for known in self.processes if known.poll() is None]
        self.processes.append(process)


_started = _Started()


def end_started() -> None:
    """End every process of Ray's that this one has started, also those of a node that did not come up and that nobody
    knows therefore."""
    for process in _started.processes:
        process.kill()  # nothing, if it has ended
    for process in _started.processes:
        process.wait()


def leave_ray() -> None:
    """Disconnect this process from Ray, if it is connected. Only in the main thread.

    Effects: handlers of signals stay. Ray's C++ code gives SIGTERM back its default, which would end this process.
    """
    before = {kind: signal.getsignal(kind) for kind in ending_signals()}
    ray.shutdown()
    for kind, handler in before.items():
        signal.signal(kind, handler)


def too_slow(error: BaseException) -> bool:
    """Whether a start failed because the machine is busy."""
    return isinstance(error, TimeoutError) or any(sign in str(error).lower() for sign in _TOO_SLOW)


def keep_agents() -> None:
    """From now on, raylets that this process starts have agents that may die, and `end_started` knows what it starts.

    Effects: changes how Ray's own library starts a process. It has no other place for this: the commands are part of
        the raylet's command line, which is made where it is started.
    """
    from ray._private import services  # heavy

    start = services.start_ray_process
    if hasattr(start, "keeps_agents"):
        return

    def start_ray_process(command: list[str], *arguments: Any, **options: Any) -> Any:
        info = start(kept(command), *arguments, **options)
        _started.add(info.process)
        return info

    start_ray_process.keeps_agents = True  # type: ignore[attr-defined]
    services.start_ray_process = start_ray_process


def hide_command_line() -> None:
    """Keep this process's arguments, keys perhaps, out of what Ray's control store knows of its job, and keeps on disk.

    Effects: changes Ray's own library in this process; it has no setting for this.
    """
    from ray._private import utils  # heavy

    utils.get_entrypoint_name = lambda: "cloudmatrix serve"


def kept(command: list[str]) -> list[str]:
    """A raylet's command line with a keeper before each of its agents; any other command as it is."""
    keeper = subprocess.list2cmdline([sys.executable, "-I", "-S", str(Path(agent_keeper.__file__))])
    return [
        f"{option}{keeper} {part.removeprefix(option)}"
        if (option := next((name for name in _AGENTS if part.startswith(name)), ""))
        else part
        for part in command
    ]


def dead(node: Any, kind: str) -> bool:
    """Whether a process of a node, started by this one, has ended."""
    return any(info.process.poll() is not None for info in node.all_processes.get(kind, ()))


def start_raylet_again(node: Any) -> None:
    """Give a node whose raylet has ended, or is frozen, another one. For Ray it is a new node.

    Raises: what Ray raises if it does not come up; to be tried again.
    """
    from ray import NodeID  # heavy
    from ray._private import services

    for kind in ("raylet", "log_monitor"):  # `start_ray_processes` starts both
        if kind in node.all_processes:
            node._kill_process_type(kind, check_alive=False, wait=True)
    for socket in (node.raylet_socket_name, node.plasma_store_socket_name):
        Path(socket).unlink(missing_ok=True)
    node._node_id = NodeID.from_random().hex()
    node.start_ray_processes()
    services.wait_for_node(node.gcs_address, node.plasma_store_socket_name, RAYLET_DEADLINE_S)


class HelperTender:
    """Starts the first node's dashboard and monitors again when they die."""

    def __init__(self) -> None:
        self._missing: set[str] = set()
        """Dead, and not yet started again."""
        self._not_before = 0.0

    def tend(self, node: Any) -> None:
        """Look once. Raises: what Ray raises if one does not come up; it is tried again after `RETRY_S`."""
        for kind in HELPERS:
            if dead(node, kind):
                logger.warning("Ray's %s has died; starting it again", kind)
                node.all_processes.pop(kind)
                self._missing.add(kind)
        if not self._missing or time.monotonic() < self._not_before:
            return
        self._not_before = time.monotonic() + RETRY_S
        for kind in sorted(self._missing):
            _START[kind](node)
            self._missing.discard(kind)
        self._not_before = 0.0


def _start_dashboard(node: Any) -> None:
    """At the address that people know."""
    node._ray_params.dashboard_port = int(node.webui_url.rpartition(":")[2])
    node.start_api_server(include_dashboard=True, raise_on_failure=True)


def _start_monitor(node: Any) -> None:
    """For which Ray asks its GCS what autoscaler there is, through a client that `leave_ray` has taken away."""
    from ray.experimental import internal_kv  # heavy

    internal_kv._initialize_internal_kv(node.get_gcs_client())
    node.start_monitor()


_START: dict[str, Any] = {
    "dashboard": _start_dashboard,
    "log_monitor": lambda node: node.start_log_monitor(),
    "monitor": _start_monitor,
}
