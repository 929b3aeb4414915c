"""All boards, by the names of their files."""

from collections.abc import Callable
from pathlib import Path

from deploy.grafana.source.fabric import fabric
from deploy.grafana.source.hosts import hosts
from deploy.grafana.source.running import operator
from deploy.grafana.source.scaling import scaling
from deploy.grafana.source.user import user

FOLDER = Path(__file__).resolve().parents[1] / "boards"
"""Folder of the boards' JSON files."""
BOARDS: dict[str, Callable[[], str]] = {
    "user": user, "operator": operator, "fabric": fabric, "hosts": hosts, "scaling": scaling,
}  # fmt: skip
