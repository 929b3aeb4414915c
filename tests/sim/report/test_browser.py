"""The page in a real browser: no script error, nothing wider than the screen, filter and cursor work."""

import html
import json
import re
import subprocess
from pathlib import Path

import pytest

from serving.sim.report.goodput import Slo
from serving.sim.report.page import report_page
from tests.loadgen.report.browser import FLAGS, chromium
from tests.sim.report.made import made_result, made_step

pytestmark = pytest.mark.timeout(120)

_ERRORS = """<head><script>
window.faults = [];
addEventListener("error", (event) => faults.push(event.message));
addEventListener("securitypolicyviolation", (event) => faults.push(event.violatedDirective));
</script>"""

_INSPECT = """<script>addEventListener("load", () => {
  const words = document.getElementById("words");
  const all = document.getElementById("shown").textContent;
  words.value = "scale TTFT";
  words.dispatchEvent(new Event("input"));
  const some = document.getElementById("shown").textContent;
  const plot = document.querySelector("#time-plots svg");
  const box = plot.getBoundingClientRect();
  const left = +document.getElementById("time-plots").dataset.left;
  const right = +document.getElementById("time-plots").dataset.right;
  plot.dispatchEvent(new PointerEvent("pointermove",
    { bubbles: true, clientX: box.left + box.width * (left + right) / 2, clientY: box.top + 90 }));
  const seen = { all, some, moment: document.getElementById("moment").textContent,
    cursors: [...document.querySelectorAll(".cursor")].filter((cursor) => !cursor.hidden).length,
    overflow: document.documentElement.scrollWidth - innerWidth,
    ink: getComputedStyle(document.body).color };
  document.getElementById("theme").click();
  seen.other_ink = getComputedStyle(document.body).color;
  seen.faults = faults;
  parent.postMessage(JSON.stringify(seen), "*");
});</script></body>"""

_FRAME = """<!DOCTYPE html><body style="margin:0"><pre id="seen"></pre>
<iframe src="report.html" style="border:0;width:{width}px;height:900px"></iframe>
<script>
addEventListener("message", (event) => {{ document.getElementById("seen").textContent = event.data; }});
</script>
"""


@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_in_a_browser(tmp_path: Path, width: int) -> None:
    page = report_page(made_result(300), Slo(ttft_s=2.0, tpot_s=0.05), step_cost=made_step())
    inspected = page.replace("<head>", _ERRORS, 1).replace("</body>", _INSPECT)
    (tmp_path / "report.html").write_text(inspected, encoding="utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(_FRAME.format(width=width), encoding="utf-8")
    run = subprocess.run(
        [chromium(), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", frame.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    text = re.search(r'<pre id="seen">(.+?)</pre>', run.stdout, re.DOTALL)
    assert text, run.stderr[-500:]
    seen = json.loads(html.unescape(text[1]))
    assert seen["faults"] == []
    assert seen["overflow"] <= 0
    assert (seen["all"], seen["some"]) == ("56 of 56 rows", "6 of 56 rows")
    assert seen["moment"] == "at 30:00"
    assert seen["cursors"] == 13
    assert seen["ink"] != seen["other_ink"]
