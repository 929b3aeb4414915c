"""A real Prometheus scrapes the system with deploy/prometheus: every query of every board and rule returns series."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from deploy.grafana.source.picture import draw
from tests.e2e.server import Server, free_port, wait_for
from tests.telemetry.ray_panels import WITHOUT_MEANING, queries

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
PROGRAM = shutil.which("prometheus")
FOR_OTHERS = {
    "cloudmatrix:prompt_tokens_recomputed",
    "vllm:spec_decode",  # without speculation
    "cloudmatrix:scaling_decisions",  # before anybody has scaled it
    *WITHOUT_MEANING,
    "ray_vllm_kv_offload_load_time_total",  # one instance finds its own blocks, and reads none back
    "cloudmatrix:expert_", "cloudmatrix:rank_", "cloudmatrix:group_", "cloudmatrix:exchange_",  # without such groups
}  # fmt: skip
"""Series that this system does not have."""


class Prometheus:
    """A Prometheus with the configuration of deploy/prometheus and a shorter scrape interval."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self._folder = folder
        for path in (DEPLOY / "prometheus").glob("*.y*ml"):
            (folder / path.name).write_text(path.read_text().replace("_interval: 15s", "_interval: 1s"))
        (folder / "gateways.yaml").write_text(f'- targets: ["127.0.0.1:{server.port}"]\n')
        (folder / "ray").symlink_to(server.folder / f"cloudmatrix-{server.session}" / "ray")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run it for the duration of the block."""
        assert PROGRAM is not None, "prometheus is not installed"
        command = [PROGRAM, f"--config.file={self._folder}/prometheus.yml", f"--storage.tsdb.path={self._folder}/data"]
        address = f"--web.listen-address={self.url.removeprefix('http://')}"
        with (self._folder / "log").open("wb") as log, subprocess.Popen([*command, address], stderr=log) as process:
            try:
                yield
            finally:
                process.terminate()

    def ask(self, query: str) -> list[dict[str, Any]]:
        """Current series of a query.

        Raises: urllib.error.HTTPError if the query is invalid.
        """
        url = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(url, timeout=30) as reply:
            found: list[dict[str, Any]] = json.load(reply)["data"]["result"]
        return found

    def sees(self, job: str) -> bool:
        """Whether every target of a job responds."""
        with contextlib.suppress(OSError):
            up = self.ask(f'up{{job="{job}"}}')
            return bool(up) and all(one["value"][1] == "1" for one in up)
        return False


@pytest.mark.skipif(PROGRAM is None and not os.environ.get("CI"), reason="prometheus is not installed")
def test_every_query_of_every_board_and_rule_has_an_answer(server: Server, tmp_path: Path) -> None:
    prometheus = Prometheus(tmp_path, server)
    with prometheus.running():
        for job in ("cloudmatrix", "ray"):
            wait_for(lambda job=job: prometheus.sees(job), f"{job} is scraped")  # type: ignore[misc]
        _ask_something(server, 0)
        asked = {**_boards(), **_rules(), **_of_ray()}
        assert len(asked) > 80
        end = time.monotonic() + 90.0
        silent = {where: query for where, query in asked.items() if not prometheus.ask(query)}
        while (
            _unexpected(silent) and time.monotonic() < end
        ):  # a rate needs two scrapes; the board reports periodically
            _ask_something(server, len(silent))
            time.sleep(1.0)
            silent = {where: query for where, query in silent.items() if not prometheus.ask(query)}
        draw("user", prometheus.url, 1, tmp_path / "user.png")
    assert _unexpected(silent) == {}
    assert (tmp_path / "user.png").read_bytes().startswith(b"\x89PNG")


def _ask_something(server: Server, number: int) -> None:
    prompt = f"{number} watched " * 20
    server.post("/v1/completions", {"model": "tiny", "prompt": prompt, "max_tokens": 4})


def _unexpected(silent: dict[str, str]) -> dict[str, str]:
    return {where: query for where, query in silent.items() if not any(name in query for name in FOR_OTHERS)}


def _boards() -> dict[str, str]:
    """Every query of every board, by board, panel and legend."""
    found: dict[str, str] = {}
    for path in sorted((DEPLOY / "grafana" / "boards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                where = f"{path.stem}: {panel['title']}: {target['refId']}"
                found[where] = target["expr"].replace("$__rate_interval", "1m")
    return found


def _of_ray() -> dict[str, str]:
    """Queries of Ray's own boards. Steps of a subquery end at whole minutes, for which this test would have to wait."""
    return {where: query.replace("[24h:1m]", "[1h:1s]") for where, query in queries().items()}


def _rules() -> dict[str, str]:
    """Every expression of the rules; of an alert, both sides of each comparison, since an alert that does not fire is
    fine.
    """
    found: dict[str, str] = {}
    for path in sorted((DEPLOY / "prometheus").glob("*.rules.yaml")):
        for rule in (rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]):
            name = rule.get("alert") or rule["record"]
            sides = re.split(r" (?:[<>]|==) (?:[\d.]+)?| and (?:on \(.*?\) )?", rule["expr"])
            found |= {f"{path.stem}: {name}: {number}": side for number, side in enumerate(sides) if side.strip()}
    return found
