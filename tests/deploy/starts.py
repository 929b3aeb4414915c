"""Commands and environments with which the files of deploy/ start hosts, read from the files."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.deploy.kubernetes import Manifest, groups
from tests.deploy.tools import BIN, DEPLOY, ROOT

TOKEN_FILE, TOKEN = "/tmp/ray-token", "0123456789abcdef" * 4
PATH = f"{BIN}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


@dataclass(frozen=True)
class Start:
    """Commands and environment that start a host.

    Args:
        probes: commands by name, run while it runs.
    """

    command: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    probes: Mapping[str, list[str]] = field(default_factory=dict)

    def line(self) -> list[str]:
        """A command line with this environment only, which restarts the command whenever it ends.

        systemd, Docker and Kubernetes do so: on a busy machine Ray sometimes gives up its own start.
        """
        return ["sh", "-c", 'while :; do "$@"; sleep 1; done', "sh", *self.within(self.command)]

    def within(self, command: list[str]) -> list[str]:
        """Run a command in the environment."""
        # Hosts made of namespaces know each other from /etc/hosts, which gRPC's own resolver does not read.
        variables = {"PATH": PATH, "HOME": "/tmp", "GRPC_DNS_RESOLVER": "native", "PYTHONPATH": str(ROOT)}
        variables |= self.environment
        return ["env", "-i", *(f"{name}={value}" for name, value in variables.items()), *command]


def unit(name: str, settings: Mapping[str, str]) -> Start:
    """A unit's start. `settings`: contents of /etc/cloudmatrix.conf."""
    text = (DEPLOY / "hosts" / f"{name}.service").read_text(encoding="utf-8")
    found = re.search(r"^ExecStart=(.*)$", text, re.MULTILINE)
    assert found is not None
    return Start(shlex.split(found[1].replace("/opt/cloudmatrix-infer", str(ROOT))), settings)


def service(name: str) -> Start:
    """A service of deploy/compose.yaml. A test can supply the secret."""
    one = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"][name]
    environment = {key: value.replace("/run/secrets/ray-token", TOKEN_FILE) for key, value in _environment(one)}
    kind, *probe = one["healthcheck"].get("test", ["CMD"])
    assert kind == "CMD"
    return Start(one["command"], environment, {"healthy": probe} if probe else {})


def _environment(one: Mapping[str, Any]) -> list[tuple[str, str]]:
    return list(one.get("environment", {}).items())


def group(manifests: list[Manifest], number: int, given: Mapping[str, str], address: str = "") -> Start:
    """A pod of a RayService, started as KubeRay's operator does.

    Args:
        number: of its group; 0 = the head.
        given: what the operator adds to the environment.
        address: of the head, for the others.
    """
    (ray,) = (one for one in manifests if one["kind"] == "RayService")
    one = groups(ray)[number]
    (container,) = one["template"]["spec"]["containers"]
    named = {made["metadata"]["name"]: made["data"] for made in manifests if made["kind"] == "ConfigMap"}
    environment: dict[str, str] = {}
    for source in container["envFrom"]:
        environment |= named[source["configMapRef"]["name"]]
    defaults = {"metrics-export-port": "8080", "block": "true", "dashboard-agent-listen-port": "52365"}
    own = {"address": address} if address else {"dashboard-host": "0.0.0.0", "no-monitor": "true"}
    if "REDIS_PASSWORD" in given:
        own["redis-password"] = "$REDIS_PASSWORD"
    parameters = {**defaults, **own, **one["rayStartParams"]}
    if "num-cpus" not in parameters:
        parameters["num-cpus"] = container["resources"]["requests"]["cpu"]
    flags = " ".join(f"--{key}" if value == "true" else f"--{key}={value}" for key, value in sorted(parameters.items()))
    command = ["bash", "-c", f"ray start {'' if address else '--head '}{flags}"]
    probes = {
        kind: container[kind]["exec"]["command"] for kind in ("readinessProbe", "livenessProbe") if kind in container
    }
    return Start(command, {**environment, **given}, probes)
