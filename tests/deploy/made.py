"""Files of deploy/ that are made of other files or of code: `python -m tests.deploy.made` writes them anew."""

from collections.abc import Callable

import yaml  # type: ignore[import-untyped]

from serving.cluster.host_environment import host_environment
from serving.config.health import HealthConfig
from tests.deploy.boards.all import BOARDS
from tests.deploy.tools import DEPLOY

MADE_BY = "Made by `python -m tests.deploy.made`; a test compares."
RULES = ("serving", "experts")


def prometheus_rule() -> str:
    """The rules of deploy/prometheus/ as prometheus-operator takes them."""
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
    """Environment of a pod before `ray start`, but for what image and operator give it."""
    lines = "".join(f"{name}={value}\n" for name, value in sorted(host_environment(HealthConfig()).items()))
    return f"# What `cloudmatrix node-env` prints. {MADE_BY}\n{lines}"


MADE: dict[str, Callable[[], str]] = {
    "kuberay/base/rules.yaml": prometheus_rule,
    "kuberay/base/node.env": node_env,
    **{f"grafana/boards/{name}.json": make for name, make in BOARDS.items()},
}


def main() -> None:
    """Write all of them; say where."""
    for name, make in MADE.items():
        path = DEPLOY / name
        path.write_text(make(), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
