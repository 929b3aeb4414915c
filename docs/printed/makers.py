"""Makers of the output that READMEs show: a function each, by the name of the block."""

import argparse
import asyncio
import contextlib
import functools
import io
import json
import re
import subprocess
import sys
import tempfile
import textwrap
import urllib.request
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console

from loadgen.result import RunResult
from loadgen.run_folder import REPORT, read_result
from loadgen.run_report.console import WIDTH, print_result
from tests.examples.run_example import run_example
from tests.pages import ROOT
from tests.scaling.dashboard.chromium import Chromium

# Blocks of printed output in a page, by the name in the comment before them.

_BLOCK = re.compile(
    r"(?P<head><!-- printed: (?P<name>[\w ]+) -->\n+```\n)(?P<text>.*?)(?P<tail>^```)", re.DOTALL | re.MULTILINE
)


def shown(page: Path) -> dict[str, str]:
    """Texts of a page's blocks by name."""
    return {found["name"]: found["text"] for found in _BLOCK.finditer(page.read_text(encoding="utf-8"))}


def show(page: Path, name: str, text: str) -> bool:
    """Put a text into a page's block of this name, if the page has one.

    Returns: whether it has.
    Effects: writes the page.
    """
    old = page.read_text(encoding="utf-8")
    new = _BLOCK.sub(lambda found: found["head"] + text + found["tail"] if found["name"] == name else found[0], old)
    if new != old:
        page.write_text(new, encoding="utf-8")
    return name in shown(page)


# The load test that loadgen/README.md shows: recorded from a running system, and printed again by each test.
#
# `python -m docs.printed.makers --url http://127.0.0.1:8000` regenerates it: both commands of the README run on that
# system, the closed loop's result is stored in recorded/closed.json, and pictures of both reports are taken.

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


# Makers of the output that READMEs show: a function each, by the name of the block.

STORY = {
    "max_tokens": 60,
    "temperature": 0,
    "messages": [{"role": "user", "content": "Tell me a story about a little dog and a ball."}],
}
"""The first request of README.md."""
LOAD = "--poisson 120 --prompt 2048 --output 1000 --reuse 0.5 --duration 1min"
"""Load on the simulated supernode in README.md."""


EXPERTS = "simulate --config deploy/ep320.toml --faults examples/lost-die.toml"
EXPERTS += " --poisson 70 --prompt 1024 --output 1000 --duration 200s"
"""The command of serving/virtual/README.md whose experts move."""


def simulate() -> str:
    """A supernode under load, in the summary of `cloudmatrix simulate`."""
    return _simulated(f"simulate --config deploy/cloudmatrix384.toml {LOAD}")


def experts() -> str:
    """Changes of the expert map of a decode instance of 320 dies."""
    texts = _simulated(EXPERTS).split("\n\n")
    return next(f"{text}\n" for text in texts if text.startswith("experts "))


def _simulated(words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "serving.cli", *words.split(), "--quiet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def plan() -> str:
    """The answer of `examples/plan.sh`: how many NPUs a load needs."""
    done = run_example("plan.sh")
    assert done.returncode == 0, done.stderr
    return done.stdout


def plan_in_short() -> str:
    """The same without explanations: the plan, its alternatives, its reserve, its screening, its losses and costs."""
    answer, plans, reserve, screened, losses, costs, *_ = plan().split("\n\n")
    tables = (table.partition(f"\n{note}")[0] for table, note in zip((plans, losses, costs), _NOTES, strict=True))
    plans, losses, costs = tables
    return "\n\n".join((answer.partition("\n  ")[0], plans, reserve, screened, losses, costs)) + "\n"


_NOTES = ("prefill + decode: instances", "Lost in the middle", "Over the time")
"""Starts of the explanations of those tables."""


def story(url: str) -> str:
    """The answer to README.md's first request, wrapped."""
    body = json.dumps(STORY).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        text: str = json.load(answer)["choices"][0]["message"]["content"]
    return "".join(f"{textwrap.fill(line, 118)}\n" for line in text.splitlines())


def turns(url: str) -> str:
    """Output of `examples/turns.py` on a system that has served only the story."""
    done = run_example("turns.py", url)
    assert done.returncode == 0, done.stderr
    return done.stdout


ALONE: dict[str, Callable[[], str]] = {
    "simulate": simulate,
    "experts": experts,
    "plan": plan,
    "plan in short": plan_in_short,
    "load test": load_test,
}
"""These need no running system."""
SERVED: dict[str, Callable[[str], str]] = {"story": story, "turns": turns}
"""These take the address of a new system that serves the bundled model; in this order."""
