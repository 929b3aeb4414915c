"""A tutorial as a list of its reader's actions: commands to run, and their output.

Blocks marked `bash` are run, one after the other in one shell, unless a comment before them is
`<!-- by hand: why -->`.
A block of `cloudmatrix serve` or `make serve` starts a system. A block marked `text` after a command shows its output;
the comment before it defines the comparison: `<!-- prints -->` exactly, `<!-- prints about -->` with other
figures and names of replicas, `<!-- prints something like -->` not at all.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.pages import ROOT

FOLDER = ROOT / "docs" / "tutorials"
TUTORIALS = ("serve", "break-it", "scale-it", "measure-it", "supernodes", "your-model", "hosts", "take-apart")
"""In the order in which they are read. They share one system, but where they start one of their own."""
_BLOCK = re.compile(
    r"(?:<!-- by hand: (?P<why>[^>]+) -->\n)?```bash\n(?P<commands>.*?)^```\n"
    r"(?:\n<!-- prints(?P<how> about| something like)? -->\n```text\n(?P<shown>.*?)^```\n)?",
    re.DOTALL | re.MULTILINE,
)
_SERVE = re.compile(r"^(?:cloudmatrix|make) serve\b", re.MULTILINE)
_SAME = (
    (re.compile(r"\b[0-9a-f]{32}\b|\b[0-9a-f]{12}\b|\bfp_[0-9a-f]+"), "ID"),
    (re.compile(r"\b[a-z0-9]{8}\b"), "ID"),
    (re.compile(r"\bn\d+\b"), "ID"),  # a host without replicas is numbered after a while, until then it has an id
    (re.compile(r"[+-]?\d[\d,.]*"), "0"),
    (re.compile(r"\b(?:µs|us|ms|s|min|kB|MB|KiB|MiB|GiB)\b"), "UNIT"),
    (re.compile(r"[ \t]+"), " "),
)


@dataclass(frozen=True)
class Block:
    """A block that the reader types.

    Args:
        shown: output shown by the page; None = none.
        how: it is compared; "" = exactly, "about" = except figures, "something like" = not.
        by_hand: it is not run, for a reason given by the page.
    """

    commands: str
    shown: str | None
    how: str
    by_hand: bool

    @property
    def serves(self) -> bool:
        """Whether it starts a system, which runs until Ctrl-C."""
        return _SERVE.search(self.commands) is not None

    def agrees(self, printed: str) -> bool:
        """Whether this matches the page."""
        if self.shown is None or self.how == "something like":
            return True
        return alike(self.shown) == alike(printed) if self.how == "about" else self.shown == printed


def blocks(page: Path) -> list[Block]:
    """All blocks that the reader types, in order."""
    return [
        Block(found["commands"], found["shown"], (found["how"] or "").strip(), found["why"] is not None)
        for found in _BLOCK.finditer(page.read_text(encoding="utf-8"))
    ]


def alike(text: str) -> str:
    """A text without its figures, units and names of replicas, which differ from run to run."""
    for pattern, word in _SAME:
        text = pattern.sub(word, text)
    return "\n".join(line.strip() for line in text.strip().splitlines())


def rewrite(page: Path, printed: list[str | None]) -> None:
    """Replace the output on the page.

    Args:
        printed: for each block; None = it was not run.
    Effects: writes the page.
    """
    outputs = iter(printed)

    def new(found: re.Match[str]) -> str:
        output = next(outputs)
        whole: str = found[0]
        if output is None or found["shown"] is None:
            return whole
        start, end = found.start("shown") - found.start(), found.end("shown") - found.start()
        return whole[:start] + output + whole[end:]

    page.write_text(_BLOCK.sub(new, page.read_text(encoding="utf-8")), encoding="utf-8")
