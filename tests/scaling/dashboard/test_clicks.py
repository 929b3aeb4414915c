"""Clicks reach their button: the page does not move while data arrives, and the tests' mouse waits for a still
button.
"""

import pytest

from tests.scaling.dashboard.chromium import Chromium
from tests.scaling.dashboard.conftest import TOKEN, FakeDashboard
from tests.scaling.dashboard.opened import DECODE, MORE

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

LATE_HISTORY = """
{ const real = window.fetch; window.fetch = async (path, options) => {
    if (path.startsWith("api/pools/history")) await new Promise((done) => { window.letHistoryCome = done; });
    return real(path, options); }; }
"""
TOP = "document.querySelector({0!r}).getBoundingClientRect().top + scrollY"
MOVING = """{
document.body.innerHTML = `<div id="above"></div><button id="there">there</button>`;
window.clicks = 0;
document.getElementById("there").onclick = () => { window.clicks += 1; };
let steps = 0;
const grow = () => { document.getElementById("above").style.height = `${30 * ++steps}px`;
  if (steps < 12) requestAnimationFrame(grow); };
grow(); }
"""
COVERED = """
document.body.innerHTML = `<button id="there"><b>there</b></button>
  <div id="cover" style="position: fixed; inset: 0"></div>`;
window.clicks = 0;
document.getElementById("there").onclick = () => { window.clicks += 1; };
setTimeout(() => document.getElementById("cover").remove(), 150);
"""


@pytest.mark.parametrize("width", [1280, 390])
async def test_curves_that_come_late_move_no_button(browser: Chromium, dashboard: FakeDashboard, width: int) -> None:
    dashboard.wish(load=0.8)
    async with browser.page(width) as page:
        await page.send("Page.addScriptToEvaluateOnNewDocument", source=LATE_HISTORY)
        await page.log_in(dashboard.url, TOKEN)
        await page.go(f"{dashboard.url}/pools")
        await page.wait("document.querySelectorAll('.pool').length === 3 && window.letHistoryCome")
        await page.run(f"window.button = document.querySelector({MORE!r})")
        before = await page.run(TOP.format(MORE))
        await page.run("window.letHistoryCome()")
        await page.wait("document.querySelector('#curves .line[d^=M]') !== null")
        assert await page.run(TOP.format(MORE)) == before
        assert await page.run(f"window.button === document.querySelector({MORE!r})")


async def test_the_mouse_waits_for_a_button_that_moves_or_is_covered(browser: Chromium) -> None:
    async with browser.page() as page:
        for scene in (MOVING, COVERED):
            await page.run(scene)
            await page.click("#there")
            assert await page.run("window.clicks") == 1


async def test_a_click_while_the_page_is_still_opening_counts(browser: Chromium, dashboard: FakeDashboard) -> None:
    async with browser.page() as page:
        await page.log_in(dashboard.url, TOKEN)
        await page.go(f"{dashboard.url}/pools")
        await page.wait(f"document.querySelector({MORE!r}) !== null")
        await page.click(MORE)
        await page.wait(f"document.querySelector({DECODE!r}).innerText.includes('4 serving')")
