"""Parts of Ray other than its nodes and its GCS that the launcher keeps alive."""

import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray

from serving.launch import agent_keeper
from serving.launch.patience import processor_ticks, wait_patiently
from serving.terminal import ending_signals

logger = logging.getLogger(__name__)

HELPERS = ("dashboard", "monitor")
"""Processes of a node, by Ray's names. Without the dashboard, scaling by page, REST or command line is unavailable."""
RETRY_S = 5.0
"""Time between two attempts to start a failing process."""
RAYLET_DEADLINE_S = 30
_TOO_SLOW = ("timed out", "overloaded", "took too long")
"""Fragments of Ray's error messages after which a retried start may succeed."""
_NEEDED = ("gcs_server", "raylet")
_AGENTS = ("--dashboard_agent_command=", "--runtime_env_agent_command=")
_WORKER = "--python_worker_command="


class _Started:
    """Ray processes started by this process that may still run."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.fresh: list[tuple[str, subprocess.Popen[bytes]]] = []
        """Processes of `_NEEDED` started since the last wait; if one has exited, waiting is pointless."""
        self.exited = ""
        """The one that has exited instead of starting."""

    def add(self, process: subprocess.Popen[bytes], program: str = "") -> None:
        self.processes = [known for known in self.processes if known.poll() is None]
        self.processes.append(process)
        if program in _NEEDED:
            self.fresh.append((program, process))

    def ended(self) -> str:
        """Description of a part that exited instead of starting; empty = none."""
        for program, process in self.fresh:
            if process.poll() is not None:
                self.exited = program
                return f"Ray's {program} exited with code {process.returncode}"
        return ""


_started = _Started()


def end_started() -> None:
    """Kill every Ray process that this process started, including those of a node that failed to start."""
    for process in _started.processes:
        process.kill()  # no effect on an exited process
    for process in _started.processes:
        process.wait()
    _started.exited = ""


def exited_part() -> str:
    """Ray's process that exited instead of starting, by Ray's name; empty = none. Ray's own error does not name it."""
    return _started.exited


def leave_ray() -> None:
    """Disconnect this process from Ray, if it is connected. Only in the main thread.

    Effects: signal handlers are kept, because Ray's C++ code resets SIGTERM to its default, which would end this
    process. Automatic connection is disabled: a Serve thread with a pending call would connect through a node that is
    about to end, and end this process with it.
    """
    from ray._private import auto_init_hook  # not Ray's public interface

    auto_init_hook.enable_auto_connect = False
    before = {kind: signal.getsignal(kind) for kind in ending_signals()}
    ray.shutdown()
    for kind, handler in before.items():
        signal.signal(kind, handler)


def too_slow(error: BaseException) -> bool:
    """Whether a start failed because the machine is busy."""
    return isinstance(error, TimeoutError) or any(sign in str(error).lower() for sign in _TOO_SLOW)


def keep_agents(worker_client: Sequence[str] = ()) -> None:
    """Let raylets of this process survive their agents' death, and register started processes for `end_started`.

    Args:
        worker_client: command with which workers are forked, see `WorkerSeed.client`; by default Ray starts them.
    Effects: patches how Ray's library starts a process. Ray has no hook for it: the agents' commands are part of the
    raylet's command line, which is built at its start.
    """
    from ray._private import services  # heavy

    start = services.start_ray_process
    if hasattr(start, "keeps_agents"):
        return

    def start_ray_process(command: list[str], *arguments: Any, **options: Any) -> Any:
        info = start(kept(command, worker_client), *arguments, **options)
        _started.add(info.process, Path(command[0]).name)
        return info

    start_ray_process.keeps_agents = True  # type: ignore[attr-defined]
    services.start_ray_process = start_ray_process


def start_beside_dashboard() -> None:
    """Let Ray's start continue while its dashboard starts, which takes longer than the rest of it.

    Effects: patches Ray's library, which waits for the dashboard's address in the control store; the address is known
    before, so it is written there first. The caller waits for the dashboard itself.
    """
    import ray._common.network_utils as untyped_addresses  # heavy
    import ray._private.services as untyped_services
    from ray._private import ray_constants

    services: Any = untyped_services
    addresses: Any = untyped_addresses
    start = services.start_api_server
    if hasattr(start, "is_beside"):
        return

    def start_api_server(
        include: bool, fails: bool, host: str, gcs: str, cluster: str, node: str, *arguments: Any, **options: Any
    ) -> Any:
        address = addresses.build_address(host if addresses.is_localhost(host) else node, options["port"])
        services.GcsClient(address=gcs, cluster_id=cluster).internal_kv_put(
            ray_constants.DASHBOARD_ADDRESS.encode(), address.encode(), True, ray_constants.KV_NAMESPACE_DASHBOARD
        )
        return start(include, fails, host, gcs, cluster, node, *arguments, **options)

    start_api_server.is_beside = True  # type: ignore[attr-defined]
    services.start_api_server = start_api_server


def be_patient(say: Callable[[str], object], asked: Callable[[], bool]) -> None:
    """Make this process wait for Ray's GCS and nodes as long as they make progress, not for a fixed time.

    Args:
        say: receives periodic lines about what is awaited.
        asked: whether a stop was requested, which ends the wait.
    Effects: patches how Ray's library waits, because its timeouts are constants. Call `keep_agents` first.
    """
    from ray._private import node, services  # heavy

    if hasattr(services.get_node, "is_patient"):
        return
    get_node, wait_for_node = services.get_node, services.wait_for_node
    ray_node: Any = node
    wait_for_port = ray_node.wait_for_persisted_port

    def patient(what: str, attempt: Callable[[], Any]) -> Any:
        return patiently(what, attempt, say, asked)

    def patient_get_node(*arguments: Any, **options: Any) -> Any:
        return patient("a node of Ray", lambda: get_node(*arguments, **options))

    def patient_wait_for_node(gcs_address: str, node_plasma_store_socket_name: str, timeout: int = 0) -> Any:
        return patient(
            "a node of Ray in its table", lambda: wait_for_node(gcs_address, node_plasma_store_socket_name, 1)
        )

    def patient_wait_for_port(*arguments: Any, timeout_ms: int, **options: Any) -> Any:
        if not timeout_ms:
            return wait_for_port(*arguments, timeout_ms=0, **options)
        return patient("Ray's GCS", lambda: wait_for_port(*arguments, timeout_ms=500, **options))

    patient_get_node.is_patient = True  # type: ignore[attr-defined]
    services.get_node, services.wait_for_node = patient_get_node, patient_wait_for_node
    ray_node.wait_for_persisted_port = patient_wait_for_port


def patiently(what: str, attempt: Callable[[], Any], say: Callable[[str], object], asked: Callable[[], bool]) -> Any:
    """Retry an attempt until it succeeds. Returns: its result.

    Args:
        what: description of what is awaited.
        attempt: raises TimeoutError or RuntimeError until it succeeds.
    Raises: RuntimeError with the reason to stop waiting.
    """
    answers: list[Any] = []

    def look() -> bool:
        try:
            answers.append(attempt())
        except (TimeoutError, RuntimeError) as error:
            logger.debug("%s: %s", what, error)
        return bool(answers)

    def moved() -> int:
        return processor_ticks(process.pid for process in _started.processes)

    def ended() -> str:
        return "it was asked to stop" if asked() else _started.ended()

    try:
        wait_patiently(what, look, moved, ended, say)
    finally:
        _started.fresh.clear()
    return answers[0]


def hide_command_line() -> None:
    """Keep this process's arguments, which may contain keys, out of the job record in Ray's control store and on disk.

    Effects: changes Ray's own library in this process; it has no setting for this.
    """
    from ray._private import utils  # heavy

    utils.get_entrypoint_name = lambda: "cloudmatrix serve"


def kept(command: list[str], worker_client: Sequence[str] = ()) -> list[str]:
    """A raylet's command line with a keeper before each of its agents, and a client of the seed before its workers' if
    there is one; any other command unchanged.
    """
    keeper = subprocess.list2cmdline([sys.executable, "-I", "-S", str(Path(agent_keeper.__file__))])
    before = dict.fromkeys(_AGENTS, keeper)
    if worker_client:
        before[_WORKER] = subprocess.list2cmdline(worker_client)
    return [
        f"{option}{before[option]} {part.removeprefix(option)}"
        if (option := next((name for name in before if part.startswith(name)), ""))
        else part
        for part in command
    ]


def dead(node: Any, kind: str) -> bool:
    """Whether a process of a node, started by this one, has exited."""
    return any(info.process.poll() is not None for info in node.all_processes.get(kind, ()))


def start_raylet_again(node: Any) -> None:
    """Replace a node's exited or frozen raylet. Ray treats it as a new node.

    Raises: Ray's errors if it fails to start; retry later.
    """
    from ray import NodeID  # heavy
    from ray._private import services

    if "raylet" in node.all_processes:
        node._kill_process_type("raylet", check_alive=False, wait=True)
    for socket in (node.raylet_socket_name, node.plasma_store_socket_name):
        Path(socket).unlink(missing_ok=True)
    node._node_id = NodeID.from_random().hex()
    node.start_ray_processes()
    services.wait_for_node(node.gcs_address, node.plasma_store_socket_name, RAYLET_DEADLINE_S)


class HelperTender:
    """Restarts the first node's dashboard and monitors when they die."""

    def __init__(self) -> None:
        self._missing: set[str] = set()
        """Dead processes that have not been restarted yet."""
        self._not_before = 0.0

    def tend(self, node: Any) -> None:
        """Check once. A dead process is restarted by the next call: its start waits for the GCS, and a GCS that was
        killed in the same moment may not have exited yet. The launcher would wait 60 s, and Ray then ends it.

        Raises: Ray's errors if one fails to start; it is retried after `RETRY_S`.
        """
        ended = [kind for kind in HELPERS if dead(node, kind)]
        for kind in ended:
            logger.warning("Ray's %s has died; restarting it", kind)
            node.all_processes.pop(kind)
            self._missing.add(kind)
        if ended or not self._missing or time.monotonic() < self._not_before:
            return
        self._not_before = time.monotonic() + RETRY_S
        for kind in sorted(self._missing):
            _START[kind](node)
            self._missing.discard(kind)
        self._not_before = 0.0


def _start_dashboard(node: Any) -> None:
    node._ray_params.dashboard_port = int(node.webui_url.rpartition(":")[2])
    node.start_api_server(include_dashboard=True, raise_on_failure=True)


def _start_monitor(node: Any) -> None:
    """Start the monitor. Ray then queries its GCS for the autoscaler, through a client that `leave_ray` has removed."""
    from ray.experimental import internal_kv  # heavy

    internal_kv._initialize_internal_kv(node.get_gcs_client())
    node.start_monitor()


_START: dict[str, Any] = {
    "dashboard": _start_dashboard,
    "monitor": _start_monitor,
}
