"""Files in examples/ work as their headers describe: those without a system in this file and docs/printed, others in
tests/e2e.
"""

import itertools
import re
from pathlib import Path

from tests.architecture.source_tree import read_sources
from tests.examples.run_example import EXAMPLES, run_example
from tests.pages import ROOT

TESTS = read_sources("tests/examples", "tests/e2e", "docs/printed")
TUTORIALS = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/tutorials").glob("*.md"))
"""Each is run by a test."""


FILES = [path for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")]


def header(path: Path) -> str:
    """The header comment of a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return text.split('"""')[1]
    return "\n".join(itertools.takewhile(lambda line: line.startswith("#"), text.splitlines()))


def test_headers_say_what_is_shown_how_to_run_it_and_what_to_expect() -> None:
    for path in FILES:
        text = header(path)
        assert all(word in text for word in ("Shows: ", "Expect ", f"examples/{path.name}")), path.name


def test_every_example_is_run_by_a_test() -> None:
    names = [path.name for path in FILES]
    assert len(names) >= 6
    unnamed = [name for name in names if not any(f'"{name}"' in source.text for source in TESTS)]
    assert [name for name in unnamed if f"python examples/{name} " not in TUTORIALS] == []


def test_simulate() -> None:
    done = run_example("simulate.sh")
    assert done.returncode == 0, done.stderr
    undisturbed, hit = re.findall(r"^requests +(.*)$", done.stdout, re.MULTILINE)
    assert undisturbed == "178 of 178 finished, none rejected or failed"
    assert hit.startswith(undisturbed)
    assert "sent again" in hit
    before, after = (float(mean) for mean in re.findall(r"^TPOT .*?([\d.]+) ms", done.stdout, re.MULTILINE))
    assert 11 < before < 14 < 2 * before < after < 50
    assert re.search(r"^node +1 ", done.stdout, re.MULTILINE)
