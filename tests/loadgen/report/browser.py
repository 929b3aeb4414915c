"""Opens a page in headless Chromium and returns its state."""

import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--allow-file-access-from-files",
    "--virtual-time-budget=5000", "--dump-dom",
)  # fmt: skip

_INSPECT = """
<script>
// In a narrow or wide frame of its own: a window of Chromium is never narrower than 500 pixels.
addEventListener("load", () => setTimeout(() => {
  for (const part of document.querySelectorAll("details")) part.open = true;
  setTimeout(() => {
    const inked = (figure) => {
      const canvas = figure.querySelector("canvas");
      if (!canvas) return {};
      const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      const colours = {};
      for (let at = 0; at < pixels.length; at += 4) {
        if (pixels[at + 3] < 60) continue;
        const key = [pixels[at], pixels[at + 1], pixels[at + 2]].join(",");
        colours[key] = (colours[key] || 0) + 1;
      }
      return colours;
    };
    // Pixels of text in the canvas's last column: a label that goes on behind it.
    const cut = (figure) => {
      const canvas = figure.querySelector("canvas");
      if (!canvas || !canvas.width) return 0;
      const column = canvas.getContext("2d").getImageData(canvas.width - 1, 0, 1, canvas.height).data;
      return column.filter((value, at) => at % 4 === 3 && value > 60).length;
    };
    const rgb = (name) => {
      const probe = document.createElement("i");
      probe.style.color = `var(--${name})`;
      document.body.append(probe);
      const found = getComputedStyle(probe).color.match(/\\d+/g).slice(0, 3).join(",");
      probe.remove();
      return found;
    };
    const touch = (figure) => {
      const plot = figure.querySelector(".plot");
      const press = (key) => plot.dispatchEvent(new KeyboardEvent("keydown", { key }));
      const at = () => figure.querySelector(".legend .at").textContent;
      plot.focus();
      press("ArrowRight"); press("ArrowRight");
      const pointed = at();
      press("Escape");
      const left = at();
      const over = figure.querySelector(".u-over");
      const box = over.getBoundingClientRect();
      const mouse = (kind, share, target) => target.dispatchEvent(new MouseEvent(kind,
        { clientX: box.left + share * box.width, clientY: box.top + box.height / 2, movementX: 9, bubbles: true }));
      mouse("mouseenter", 0.3, over); mouse("mousemove", 0.3, over); mouse("mousedown", 0.3, over);
      mouse("mousemove", 0.6, over); mouse("mouseup", 0.6, document);
      const zoomed = [...document.querySelectorAll(".reset")].filter((button) => !button.hidden).length;
      plot.focus(); press("Escape");
      for (const button of figure.querySelectorAll(".legend button, .head button:not(.reset)")) {
        button.click(); button.click();
      }
      return { pointed, left, zoomed };
    };
    const theme = document.documentElement.dataset.theme;
    const figures = {};
    for (const figure of document.querySelectorAll("figure.chart")) {
      const look = { drawn: figure.dataset.drawn || "", colours: inked(figure), cut: cut(figure) };
      figures[figure.id] = { ...look, ...touch(figure) };
    }
    const filters = [...document.querySelectorAll(".filter")].flatMap((bar) => {
      const [words, shown] = [bar.querySelector("input"), bar.querySelector(".shown")];
      const all = shown.textContent;
      words.value = "scale TTFT";
      words.dispatchEvent(new Event("input"));
      return [all, shown.textContent];
    });
    const names = ["blue", "orange", "green", "red", "violet", "grey", "prefill", "decode", "kvcache"];
    const seen = { theme, filters,
      ready: document.documentElement.dataset.ready || "", overflow: document.documentElement.scrollWidth - innerWidth,
      palette: Object.fromEntries(names.map((name) => [name, rgb(name)])), figures };
    document.querySelectorAll("main > section details").forEach((part) => { part.open = false; });
    const paper = (kind) => {
      dispatchEvent(new Event(kind));
      const width = document.querySelector("main").clientWidth;
      return { theme: document.documentElement.dataset.theme, width,
        closed: document.querySelectorAll("main > section details:not([open])").length };
    };
    seen.paper = [paper("beforeprint"), paper("afterprint")];
    document.getElementById("theme").click();
    seen.other_theme = document.documentElement.dataset.theme;
    seen.errors = document.documentElement.dataset.errors || "";
    parent.postMessage(JSON.stringify(seen), "*");
  }, 400);
}, 400));
</script>
"""

_FRAME = """<pre class="seen"></pre><iframe src="{page}" style="border:0;width:{width}px;height:900px"></iframe>"""
_PAGE = """<!DOCTYPE html><body style="margin:0">{frames}
<script>
addEventListener("message", (event) => {{
  const place = [...document.querySelectorAll("iframe")].findIndex((one) => one.contentWindow === event.source);
  document.getElementsByClassName("seen")[place].textContent = event.data;
}});
</script>
"""


def chromium() -> str:
    """Path of the browser; a machine without one skips the test, continuous integration must have it."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("continuous integration needs Chromium: apt-get install chromium")
        pytest.skip("no Chromium here")
    return found


def checked(text: str, folder: Path, figures: Sequence[str] = ()) -> list[dict]:
    """Reports of a page in a narrow frame and in a wide one, both dark: asserts no error, no overflow, and all
    charts drawn.
    """
    (folder / "page.html").write_text(text, encoding="utf-8")
    looks = inspect_all(folder / "page.html", (390, 1280), dark=True)
    for seen in looks:
        assert (seen["errors"], seen["ready"]) == ("", "yes")
        assert seen["overflow"] <= 0
        assert all(figure["drawn"] == "yes" for figure in seen["figures"].values())
        assert list(seen["figures"]) == list(figures) if figures else seen["figures"]
    return looks


def inspect(report: Path, *, width: int, dark: bool) -> dict:
    """Report of a page in a frame of a given width: see `seen` above."""
    return inspect_all(report, (width,), dark=dark)[0]


def inspect_all(report: Path, widths: Sequence[int], *, dark: bool) -> list[dict]:
    """Reports of a page in frames of several widths, with one start of the browser."""
    folder = report.parent
    page = folder / "inspected.html"
    page.write_text(report.read_text(encoding="utf-8").replace("</body>", f"{_INSPECT}</body>"), encoding="utf-8")
    frame = folder / "frame.html"
    frames = "".join(_FRAME.format(page=page.name, width=width) for width in widths)
    frame.write_text(_PAGE.format(frames=frames), encoding="utf-8")
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    run = subprocess.run(
        [chromium(), *FLAGS, scheme, f"--user-data-dir={folder / 'profile'}", frame.as_uri()],
        capture_output=True,
        text=True,
        timeout=300,  # next to processes with a higher priority
        check=True,
    )
    seen: list[str] = re.findall(r'<pre class="seen">(.*?)</pre>', run.stdout, re.DOTALL)
    assert len(seen) == len(widths), run.stdout[:500]
    assert all(seen), f"the page said nothing: {run.stderr[-500:]}"
    return [json.loads(html.unescape(text)) for text in seen]
