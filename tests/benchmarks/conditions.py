"""Common output of benchmarks: the conditions, the spread of the repeats, the goal, one JSON line.

A figure is the median of paired repeats (A B A B: other load on the machine affects both sides alike) with its
smallest and largest value. The median decides whether a goal is met.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from serving.model.config import read_architecture
from serving.version import VERSION
from tests.model.random_checkpoint import Kind, write_random_checkpoint

ROOT = Path(__file__).resolve().parents[2]
STORYTELLER = ROOT / "deploy" / "models" / "storyteller"
_FIRST_PLAIN_ID = 16
"""Special tokens come first."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity. `at_most` defines the direction of the goal; without a goal the figure is informative."""

    name: str
    unit: str
    values: tuple[float, ...]
    goal: float | None = None
    at_most: bool = True

    @property
    def median(self) -> float:
        """The figure."""
        return statistics.median(self.values)

    @property
    def met(self) -> bool | None:
        """Whether the median meets the goal; None without one."""
        if self.goal is None:
            return None
        return self.median <= self.goal if self.at_most else self.median >= self.goal

    def row(self, width: int) -> str:
        """The figure as a line of a table."""
        text = f"  {self.name:<{width}}  {_short(self.median):>9} {self.unit:<11}"
        text += f"{_short(min(self.values)):>9} .. {_short(max(self.values)):<9} n={len(self.values):<5}"
        if self.goal is not None:
            text += f"goal {'<=' if self.at_most else '>='} {self.goal:g}: {'met' if self.met else 'NOT met'}"
        return text.rstrip()

    def as_json(self) -> dict[str, Any]:
        """Median, spread and goal as plain values."""
        plain: dict[str, Any] = {"median": self.median, "min": min(self.values), "max": max(self.values)}
        plain |= {"n": len(self.values), "unit": self.unit}
        return plain if self.goal is None else plain | {"goal": self.goal, "met": self.met}


def make_parser(module: str, doc: str | None, repeats: int, modes: Iterable[str] = ()) -> argparse.ArgumentParser:
    """A parser whose `--help` is the benchmark's description.

    SIGTERM raises in this process, so that its children are ended too.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(
        prog=f"python -m tests.benchmarks.{module}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="The last line of the output is one JSON object with conditions and figures.",
    )
    parser.add_argument(
        "--model",
        type=Path,
        metavar="DIR",
        help="checkpoint (default: deploy/models/storyteller, or a random one while that has no weights)",
    )
    parser.add_argument("--repeats", type=int, default=repeats, help=f"repeats of each side (default {repeats})")
    if modes := tuple(modes):
        # `choices` would refuse the empty list of a positional argument.
        parser.add_argument(
            "modes", nargs="*", type=one_of(modes), metavar="MODE", help=f"some of {', '.join(modes)} (default: all)"
        )
    return parser


def one_of(names: Sequence[str]) -> Callable[[str], str]:
    """Type of an argument: one of these names."""

    def chosen(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(names)}")
        return text

    return chosen


@contextlib.contextmanager
def checkpoint(folder: Path | None, kind: Kind = "tiny", *, bundled: bool = True) -> Iterator[Path]:
    """The requested folder, or the bundled model, or else a temporary random checkpoint."""
    if folder is not None:
        yield folder.resolve()
    elif bundled and any(STORYTELLER.glob("*.safetensors")) and (STORYTELLER / "config.json").exists():
        yield STORYTELLER
    else:
        with tempfile.TemporaryDirectory() as temporary:
            yield write_random_checkpoint(Path(temporary) / f"random-{kind}", kind=kind)


def random_prompts(count: int, tokens: int, vocab_size: int, seed: int) -> list[list[int]]:
    """Prompts of random ids without special tokens, different for each seed."""
    rng = random.Random(seed)
    return [[rng.randrange(_FIRST_PLAIN_ID, vocab_size) for _ in range(tokens)] for _ in range(count)]


def conditions(model: Path | None, **settings: object) -> dict[str, Any]:
    """Machine and software of a measurement; `settings` are the benchmark's own."""
    found: dict[str, Any] = {
        "cores": os.cpu_count(),
        "cpu": _cpu_name(),
        "load_average_at_start": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": version("torch"),
        "ray": version("ray"),
        "cloudmatrix": VERSION,
        "commit": _commit(),
    }
    if model is not None:
        config = read_architecture(model)
        found["model"] = f"{model.name}: {len(config.layers)} layers, hidden size {config.hidden_size}"
    return found | settings


def show_conditions(found: dict[str, Any]) -> None:
    """Print them, one per line."""
    print("conditions:")
    for name, value in found.items():
        print(f"  {name.replace('_', ' '):<22} {value}")
    print(flush=True)


def report(benchmark: str, found: dict[str, Any], figures: Sequence[Figure]) -> None:
    """Print the table of figures, then all of it as one JSON line."""
    found = found | {"load_average_at_end": round(os.getloadavg()[0], 2)}
    width = max(len(figure.name) for figure in figures)
    print(
        f"\n{benchmark}: median, smallest .. largest, repeats; load average {found['load_average_at_end']} at the end"
    )
    for figure in figures:
        print(figure.row(width))
    plain = {"benchmark": benchmark, "conditions": found, "figures": {f.name: f.as_json() for f in figures}}
    print(json.dumps(plain, default=str), flush=True)


def progress(text: str) -> None:
    """Print the current action on stderr."""
    print(f"... {text}", file=sys.stderr, flush=True)


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}"


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    """Short hash of the checkout, `+changes` when files differ from it; empty outside a checkout."""
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        return commit + ("+changes" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
