"""Small pictures of README.md: five of its six things, taken from a report of `cloudmatrix demo`.

`cloudmatrix demo`, then `python -m docs.printed.pictures demo-report` regenerates them.
The sixth is that of the page of pools, made smaller.
"""

import argparse
import asyncio
import base64
import tempfile
from pathlib import Path

from tests.pages import ROOT
from tests.scaling.dashboard.chromium import Chromium, Page

FOLDER = ROOT / "docs" / "assets" / "six"
WIDTH = 620
"""Width of the window [pixels]: its text can still be read at half the size."""
_SECTION = "[...document.querySelectorAll('h2')].find((h) => h.textContent === {title!r}).closest('section')"


def _chart(title: str) -> str:
    heading = f"[...document.querySelectorAll('h3')].find((h) => h.textContent.startsWith({title!r}))"
    return f"{heading}.closest('figure, .panel')"


PICTURES = {
    "chat": ("report.html", f"{_SECTION.format(title='Chat')}.querySelector('.panel')"),
    "cache": ("report.html", f"{_SECTION.format(title='Watch the cache')}.querySelector('.charts')"),
    "kill": ("report.html", f"{_SECTION.format(title='Kill something')}.querySelector('.charts')"),
    "scale": (str(ROOT / "tests/scaling/dashboard/pools.png"), "document.querySelector('img')"),
    "load": ("load/report.html", _chart("Time to first token")),
    "simulate": ("simulate/report.html", _chart("One decode layer")),
}
"""By name: the page, and the element that is taken."""


async def take(report: Path, folder: Path) -> None:
    """Take all of them. Effects: writes PNG files."""
    with tempfile.TemporaryDirectory() as profile, Chromium(Path(profile) / "profile") as browser:
        for name, (path, element) in PICTURES.items():
            async with browser.page(WIDTH, 900) as page:
                await page.go((report / path).resolve().as_uri())
                await page.size(WIDTH, await page.run("document.documentElement.scrollHeight") + 2000)
                await asyncio.sleep(2.0)  # charts are drawn as they come into view; there is no event for "all are"
                (folder / f"{name}.png").write_bytes(await _picture(page, element))


async def _picture(page: Page, element: str) -> bytes:
    box = await page.run(
        f"(() => {{ const b = {element}.getBoundingClientRect();"
        " return {x: b.left, y: b.top, width: b.width, height: b.height, scale: 1}; })()"
    )
    shot = await page.send("Page.captureScreenshot", format="png", clip=box)
    return base64.b64decode(shot["data"])


def main() -> None:
    """Take them from the given report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path, help="folder that `cloudmatrix demo` wrote")
    FOLDER.mkdir(exist_ok=True)
    asyncio.run(take(parser.parse_args().report, FOLDER))


if __name__ == "__main__":
    main()
