"""A small process between Ray's raylet and one of its agents, which restarts an agent that dies.

A raylet exits, and with it every replica of its node, when an agent that it started exits; Ray has no setting for that.
So the raylet starts this program instead, which needs only the standard library and runs as long as the raylet does.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

WATCH_PERIOD_S = 0.25
"""Polling period, and so the delay in detecting the end of agent or raylet."""
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 5.0
SOUND_S = 10.0
"""An agent that lived at least this long [s] is restarted without a pause."""
PORT_FILES = {
    "--grpc-port": "metrics_agent_port",
    "--metrics-export-port": "metrics_export_port",
    "--listen-port": "dashboard_agent_listen_port",
    "--runtime-env-agent-port": "runtime_env_agent_port",
}
"""Options of the agents, and the file in which Ray writes the port chosen for 0."""
_PR_SET_PDEATHSIG = 1


def keep(command: Sequence[str], raylet: int) -> None:
    """Run an agent until the raylet ends, restarting it when it exits. Effects: it ends with this process."""
    environment = {**os.environ, "RAY_RAYLET_PID": str(os.getpid())}  # the agent detects this process's end by it
    libc = ctypes.CDLL(None)
    pause_s = 0.0
    while os.getppid() == raylet:
        begun = time.monotonic()
        with contextlib.suppress(OSError):  # no process can be created now
            agent = subprocess.Popen(
                with_known_ports(command),
                env=environment,
                preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
            )
            while agent.poll() is None:
                if os.getppid() != raylet:
                    agent.kill()
                    agent.wait()
                    return
                time.sleep(WATCH_PERIOD_S)
            print(
                f"agent_keeper: an agent exited with code {agent.returncode}; restarting it",
                file=sys.stderr,
                flush=True,
            )
        pause_s = next_pause_s(pause_s, time.monotonic() - begun)
        time.sleep(pause_s)


def next_pause_s(last_s: float, lived_s: float) -> float:
    """Delay before the restart of an agent that ran for `lived_s` [s]: none at first, then doubled at each failure."""
    if lived_s >= SOUND_S:
        return 0.0
    return min(max(FIRST_PAUSE_S, 2 * last_s), LONGEST_PAUSE_S)


def with_known_ports(command: Sequence[str]) -> list[str]:
    """An agent's command with the ports that the first agent chose, because the raylet reads them only once."""
    options = dict(part.partition("=")[::2] for part in command if part.startswith("--"))
    folder, node = Path(options.get("--session-dir", "")), options.get("--node-id", "")
    ports = {}
    for option, name in PORT_FILES.items():
        if options.get(option) == "0":
            with contextlib.suppress(OSError, ValueError):
                ports[option] = int((folder / f"{name}_{node}").read_text())
    return [f"{option}={ports[option]}" if (option := part.partition("=")[0]) in ports else part for part in command]


if __name__ == "__main__":
    keep(sys.argv[1:], int(os.environ["RAY_RAYLET_PID"]))
