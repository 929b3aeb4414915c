"""Makers of the output that READMEs show: a function each, by the name of the block."""

import functools
import json
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Callable

from docs.printed.load_test import load_test
from tests.examples.run_example import run_example
from tests.pages import ROOT

STORY = {
    "max_tokens": 60,
    "temperature": 0,
    "messages": [{"role": "user", "content": "Tell me a story about a little dog and a ball."}],
}
"""The first request of README.md."""
LOAD = "--poisson 120 --prompt 2048 --output 1000 --reuse 0.5 --duration 1min"
"""What README.md puts on the simulated supernode."""


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
    """The same without explanations: the plan, its alternatives, its reserve, its losses and costs."""
    answer, plans, reserve, losses, costs, *_ = plan().split("\n\n")
    tables = (table.partition(f"\n{note}")[0] for table, note in zip((plans, losses, costs), _NOTES, strict=True))
    plans, losses, costs = tables
    return "\n\n".join((answer.partition("\n  ")[0], plans, reserve, losses, costs)) + "\n"


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
