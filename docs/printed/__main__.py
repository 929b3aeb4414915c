"""Regenerates the printed output of all READMEs: `python -m docs.printed [--url http://127.0.0.1:8000]`."""

import argparse

from docs.printed.makers import ALONE, SERVED, show
from tests.pages import ROOT


def main() -> None:
    """Write every block whose maker can run; print the pages that have it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a system that serves the bundled model and has served nothing before")
    url = parser.parse_args().url
    texts = {name: make() for name, make in ALONE.items()}
    if url:
        texts |= {name: make(url) for name, make in SERVED.items()}
    pages = [
        page for page in ROOT.rglob("*.md") if not any(part.startswith(".") for part in page.relative_to(ROOT).parts)
    ]
    for name, text in texts.items():
        print(
            f"{name}: {', '.join(str(page.relative_to(ROOT)) for page in pages if show(page, name, text)) or 'nowhere'}"
        )


if __name__ == "__main__":
    main()
