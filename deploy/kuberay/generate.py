"""Generates files of deploy/kuberay/base/ from other files and code: `python -m deploy.kuberay.generate`."""

from collections.abc import Callable
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from serving.cluster.host_environment import host_environment
from serving.config.health import HealthConfig

DEPLOY = Path(__file__).resolve().parents[1]
FOLDER = DEPLOY / "kuberay" / "base"
MADE_BY = "Made by `python -m deploy.kuberay.generate`; a test compares."
RULES = ("serving", "experts")


def prometheus_rule() -> str:
    """The rules of deploy/prometheus/ as a resource for prometheus-operator."""
    files = (DEPLOY / "prometheus" / f"{name}.rules.yaml" for name in RULES)
    groups = [group for file in files for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]]
    manifest = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "cloudmatrix"},
        "spec": {"groups": groups},
    }
    text: str = yaml.safe_dump(manifest, sort_keys=False, width=10_000)
    return f"# The rules of deploy/prometheus/. {MADE_BY}\n{text}"


def node_env() -> str:
    """Environment of a pod before `ray start`, without the variables set by the image and the operator."""
    lines = "".join(f"{name}={value}\n" for name, value in sorted(host_environment(HealthConfig()).items()))
    return f"# What `cloudmatrix node-env` prints. {MADE_BY}\n{lines}"


MADE: dict[str, Callable[[], str]] = {"rules.yaml": prometheus_rule, "node.env": node_env}
"""By the file's name in `FOLDER`."""


def main() -> None:
    """Write all files and print their paths."""
    for name, make in MADE.items():
        path = FOLDER / name
        path.write_text(make(), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
