"""The load test that loadgen/README.md shows: recorded from a running system, and printed again by each test.

`python -m docs.printed.load_test --url http://127.0.0.1:8000` regenerates it: both commands of the README run on that
system, the closed loop's result is stored in recorded/closed.json, and pictures of both reports are taken.
"""

import argparse
import asyncio
import contextlib
import io
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
from rich.console import Console

from loadgen.result import RunResult
from loadgen.run_folder import REPORT, read_result
from loadgen.run_report.console import WIDTH, print_result
from tests.pages import ROOT
from tests.scaling.dashboard.chromium import Chromium

COMMAND = "loadgen run --concurrency 8 --duration 15s --num-warmups 8 --out closed"
SWEEP = (
    "loadgen run --sweep rate --sweep-values 2,6,10,14,18,24,32 --duration 12s --slo ttft=300ms,tpot=15ms --out sweep"
)
SERVED_AT = "http://127.0.0.1:8000"
"""Address of `make serve`; a recording of another system shows it, too."""
RECORDED = Path(__file__).parent / "recorded" / "closed.json"
PICTURES = ROOT / "loadgen" / "run_report" / "pictures"
_PICTURE_SIZE = (1200, 1250)
_DRAWN = "[...document.querySelectorAll('figure')].every((one) => one.dataset.drawn || !one.offsetWidth)"


def load_test() -> str:
    """The command of the closed loop and its table."""
    result = msgspec.json.decode(RECORDED.read_bytes(), type=RunResult)
    text = io.StringIO()
    print_result(result, Console(file=text, width=WIDTH))
    return f"$ {COMMAND}\n{text.getvalue()}seed {result.seed}; written: closed/result.json, closed/{REPORT}\n"


def record(url: str) -> None:
    """Run both commands against a system that serves the bundled model; keep result and pictures.

    Effects: replaces `RECORDED` and the pictures.
    """
    with tempfile.TemporaryDirectory() as folder:
        for command in (COMMAND, SWEEP):
            words = [*command.split()[1:], "--url", url]
            subprocess.run([sys.executable, "-m", "loadgen", *words], cwd=folder, check=True, timeout=300)
        result = read_result(Path(folder, "closed"))
        result.url, result.timeline, result.samples, result.steady_state = SERVED_AT, [], [], None
        for metric in result.metrics.values():
            metric.curve = []
        RECORDED.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
        for name, target in (("closed", "run.png"), ("sweep", "sweep.png")):
            (PICTURES / target).write_bytes(asyncio.run(_picture(Path(folder, name, REPORT))))


async def _picture(page: Path) -> bytes:
    """Top of a page, as PNG."""
    width, height = _PICTURE_SIZE
    with contextlib.ExitStack() as stack:
        profile = Path(stack.enter_context(tempfile.TemporaryDirectory()), "profile")
        browser = stack.enter_context(Chromium(profile))
        async with browser.page(width, height) as shown:
            await shown.dark(False)
            await shown.send("Emulation.setScrollbarsHidden", hidden=True)
            await shown.send("Page.navigate", url=page.as_uri())
            await shown.wait("document.documentElement && document.documentElement.dataset.ready === 'yes'")
            await shown.wait(_DRAWN)
            return await shown.view()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="a system that serves the bundled model")
    record(parser.parse_args().url)
