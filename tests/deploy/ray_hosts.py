"""A Ray on hosts made of namespaces, started by hand like an operator does: `ray start` on each."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from tests.costs import count_system
from tests.deploy.hosts import Hosts, hosts
from tests.e2e.server import wait_for

RAY_PORT = 6379
BIN = Path(sys.executable).parent
MODEL = Path(__file__).resolve().parents[2] / "deploy" / "models" / "storyteller"
START_S = 300.0
AGAIN = 'for time in 1 2 3; do "$@" && exit; ray stop --force; done; exit 1'
"""Runs a start of Ray, which gives up on a busy machine; its other processes continue then, and only this host's are
ended.
"""
TOKEN, TOKEN_FILE = "0123456789abcdef" * 4, "/tmp/ray-token"
VARIABLES = "/tmp/node-env"
"""What `cloudmatrix node-env` printed on a host, and what a test adds."""

Variables = Callable[[str, str], Mapping[str, str]]


class RayHosts:
    """Hosts with a Ray across them. The first one is the head; all have equal resources.

    Args:
        npus, ub_memory_mib: of each host.
        variables: of a host by its name and address, beyond those of `cloudmatrix node-env`.
    """

    def __init__(self, made: Hosts, npus: int, ub_memory_mib: int, variables: Variables) -> None:
        self.hosts = made
        self.names = list(made.addresses)
        self._resources = json.dumps({"NPU": npus, "UB_MEMORY": ub_memory_mib})
        self._variables = variables

    @property
    def address(self) -> str:
        """Address of the head."""
        return f"{self.hosts.addresses[self.names[0]]}:{RAY_PORT}"

    def start(self, name: str, *options: str) -> None:
        """Start Ray on a host, as head if it is the first one."""
        own = self.hosts.addresses[name]
        head = ("--head", f"--port={RAY_PORT}", "--dashboard-host=0.0.0.0")
        role = head if name == self.names[0] else (f"--address={self.address}",)
        common = (f"--node-ip-address={own}", "--num-cpus=2", "--num-gpus=0", "--object-store-memory=100000000")
        self.hosts.run(name, "sh", "-c", f"echo {TOKEN} >{TOKEN_FILE}")
        for key, value in self._variables(name, own).items():
            self.run(name, "sh", "-c", f"echo export {key}={value} >>{VARIABLES}")
        start = ("ray", "start", *role, *common, f"--resources={self._resources}", *options)
        self.run(name, "sh", "-c", AGAIN, "sh", *start, timeout=START_S)

    def run(self, host: str, *command: str, timeout: float = 120.0, check: bool = True) -> str:
        """Run a command in a host, with the output of `cloudmatrix node-env` in its environment. Returns: its
        output.
        """
        return self.hosts.run(host, *self.within(*command), timeout=timeout, check=check)

    @staticmethod
    def within(*command: str) -> list[str]:
        """A command that first sets the output of `cloudmatrix node-env` in its environment; queried once per host."""
        ask = f"{BIN}/cloudmatrix node-env --token-file {TOKEN_FILE} >{VARIABLES}.$$ && mv {VARIABLES}.$$ {VARIABLES}"
        take = f"[ -e {VARIABLES} ] || {{ {ask}; }} && . {VARIABLES}"
        return ["sh", "-c", f'{take} && PATH={BIN}:$PATH && exec "$@"', "sh", *command]

    def cloudmatrix(self, host: str, *arguments: str, timeout: float = 300.0, check: bool = True) -> str:
        """Run a command of the product in a host. Returns: its output."""
        return self.run(host, "cloudmatrix", *arguments, timeout=timeout, check=check)

    def url(self, name: str, port: int = 8000) -> str:
        """Base URL of a gateway on a host."""
        return f"http://{self.hosts.addresses[name]}:{port}"

    def gateway_host(self) -> str:
        """A host with a gateway that can serve: Serve chooses the hosts of its replicas, and may move them."""
        wait_for(lambda: any(map(self._ready, self.names)), "a gateway is ready", state=self.serve_status, pause_s=0.5)
        return next(name for name in self.names if self._ready(name))

    def serve_status(self) -> str:
        """Output of `serve status`, run on the last host."""
        return self.run(self.names[-1], "serve", "status", "-a", self.url(self.names[0], 8265), check=False)

    def _ready(self, name: str) -> bool:
        code = ("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", f"{self.url(name)}/ready")
        return self.hosts.run(self.names[0], *code, check=False) == "200"


@contextmanager
def ray_hosts(
    *names: str,
    npus: int = 8,
    ub_memory_mib: int = 1024,
    options: Sequence[str] = (),
    head: Sequence[str] = (),
    variables: Variables = lambda *_: {},
) -> Iterator[RayHosts]:
    """Hosts with a Ray across them, ended with the block. Skips the test if namespaces are not allowed.

    Args:
        options: of `ray start` on each; `head`: on the first one.
        variables: of a host by its name and address, beyond those of `cloudmatrix node-env`.
    """
    with hosts(*names) as made:
        count_system("hosts")
        started = RayHosts(made, npus, ub_memory_mib, variables)
        for name in names:
            started.start(name, *options, *(head if name == names[0] else ()))
        yield started


STOP = "/tmp/steady-stop"
ANSWERS_S = 120.0


@contextmanager
def steady(on: RayHosts, host: str, found: dict[str, Any]) -> Iterator[None]:
    """Send requests from a host to its gateway while the block runs. Effects: their outcomes are in `found`."""
    on.hosts.run(host, "rm", "-f", STOP)
    command = on.hosts.command(host, sys.executable, "-m", "tests.deploy.steady", on.url(host), STOP)
    with Popen(command, stdout=PIPE, text=True) as asking:
        try:
            yield
        finally:
            on.hosts.run(host, "touch", STOP)
            said, _ = asking.communicate(timeout=ANSWERS_S)
            found.update(json.loads(said))


def left_behind(on: RayHosts, host: str) -> str:
    """Files of ours on a host."""
    return on.hosts.run(host, "sh", "-c", "ls -d /dev/shm/cloudmatrix* /tmp/cloudmatrix* 2>/dev/null || true")
