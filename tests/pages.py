"""Paths of the pages that people read."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(
            found
            for folder in ("serving", "hardware", "deploy", "loadgen", "tests", "examples")
            for found in (ROOT / folder).rglob("README.md")
        ),
    ]
)
"""READMEs, what else is written at the top level, and docs/."""
