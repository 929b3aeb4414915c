"""Pictures of two hosts for README.md: the page of pools, a request's time line, and boards, all of one running system.

`python -m docs.printed.hosts_pictures [FOLDER]` makes them again, in about five minutes; it needs root, as
`deploy/hosts/hosts.py` does, Chromium and Prometheus.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serving.scaling.dashboard.once import issue
from tests.deploy.ray_hosts import BIN, TOKEN, RayHosts, ray_hosts
from tests.pages import ROOT
from tests.scaling.dashboard.chromium import Chromium

FOLDER = ROOT / "docs" / "assets" / "hosts"
BOARDS = ("user",)
CONFIG = ROOT / "deploy" / "hosts.toml"
LOADS = ((2, 60), (8, 60), (4, 60))
"""Clients at once, and for how long [s]; the pool of decode instances grows before the second."""
PROMETHEUS = """
global: {scrape_interval: 5s}
scrape_configs: [{job_name: cloudmatrix, static_configs: [{targets: [%s]}]}]
"""


@contextmanager
def watched(on: RayHosts, folder: Path) -> Iterator[None]:
    """A Prometheus on the first host that reads every gateway."""
    targets = ", ".join(f'"{address}:8000"' for address in on.hosts.addresses.values())
    (folder / "prometheus.yml").write_text(PROMETHEUS % targets)
    files = (f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data")
    with subprocess.Popen(on.hosts.command("left", "prometheus", *files), stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


def load(on: RayHosts, clients: int, seconds: int) -> None:
    """Clients that send requests without pause."""
    sizes = ("--input-len", "96", "--output-len", "64", "--concurrency", str(clients), "--duration", str(seconds))
    on.hosts.run("left", f"{BIN}/loadgen", "run", "--url", on.url("left"), *sizes, timeout=seconds + 120)


def run(folder: Path) -> None:
    """Run all steps. Effects: writes PNG files."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch, ray_hosts("left", "right", ub_memory_mib=2048) as on:
        on.cloudmatrix("left", "serve", "--address", on.address, "--config", str(CONFIG), timeout=400)
        with watched(on, Path(scratch)):
            for number, (clients, seconds) in enumerate(LOADS):
                if number == 1:
                    on.cloudmatrix("left", "scale", "decode", "3", "--wait", "--dashboard", "http://127.0.0.1:8265")
                load(on, clients, seconds)
            page = f"{scratch}/slow.html"
            on.cloudmatrix("left", "explain", "--slowest", "1", "--html", page, "--url", on.url("left"))
            inside = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m")
            on.hosts.run("left", *inside, "docs.printed.hosts_pictures", "--inside", page, str(folder), timeout=300)
            minutes = str(sum(seconds for _, seconds in LOADS) / 60 + 1)
            for name in BOARDS:
                where = (name, "http://127.0.0.1:9090", minutes, str(folder / f"{name}.png"))
                on.hosts.run("left", *inside, "deploy.grafana.source.picture", *where)


async def take(slow: Path, folder: Path) -> None:
    """Take the pages, on the host of the dashboard."""
    with tempfile.TemporaryDirectory() as profile, Chromium(Path(profile) / "profile") as browser:
        async with browser.page(1100, 900) as page:
            await page.send("Page.navigate", url=f"http://127.0.0.1:8265/pools#once={issue(TOKEN, time.time())}")
            await page.wait("document.querySelectorAll('.pool').length === 3", 60.0)
            await asyncio.sleep(3.0)  # for its curves to have two points
            (folder / "pools.png").write_bytes(await page.view())
        async with browser.page(1100, 640) as page:
            await page.go(slow.as_uri())
            (folder / "timeline.png").write_bytes(await page.view())


def main() -> None:
    """Take them; `--inside` is the part that runs in a host."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--inside", type=Path, metavar="PAGE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    if arguments.inside is not None:
        asyncio.run(take(arguments.inside, folder))
        return
    folder.mkdir(exist_ok=True, parents=True)
    run(folder)


if __name__ == "__main__":
    os.umask(0o022)
    main()
