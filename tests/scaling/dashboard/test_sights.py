"""The page in addition to numbers: deaths, each NPU, the last hour, and ways to requests and logs."""

import re

import pytest

from tests.scaling.dashboard.chromium import Chromium, Page
from tests.scaling.dashboard.conftest import FakeDashboard
from tests.scaling.dashboard.opened import DECODE, open_page, text

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]


async def choose(page: Page, kind: str) -> None:
    """Show only decisions, only events, or both."""
    chosen = f"const s = document.querySelector('#ledger-kind'); s.value = {kind!r};"
    await page.run(f"{{ {chosen} s.dispatchEvent(new Event('change')); }}")


async def test_a_death_is_seen_at_once_and_so_is_what_comes_in_its_place(
    browser: Chromium, dashboard: FakeDashboard
) -> None:
    dashboard.wish(load=0.5)
    async with browser.page() as page:
        await open_page(page, dashboard)
        dashboard.wish(load=0.5, dead=["decode"])
        await page.wait(f"document.querySelector({DECODE!r}).innerText.includes('1 dead')")
        assert "2 serving" in await text(page, DECODE)
        assert await page.run("document.querySelectorAll('#nodes .npu[data-state=dead]').length") == 4
        assert "1,340 tokens resumed" in await text(page, "#decisions")
        await choose(page, "event")
        assert await page.run("document.querySelectorAll('#decisions li').length") == 1
        await choose(page, "decision")
        assert "tokens resumed" not in await text(page, "#decisions")
        dashboard.wish(load=0.5)
        await choose(page, "")
        await page.wait("document.querySelector('#decisions').innerText.includes('serves in place of')")
        assert "dead" not in await text(page, DECODE)
        assert page.faults == []


async def test_each_npu_is_a_square(browser: Chromium, dashboard: FakeDashboard) -> None:
    dashboard.wish(load=0.5)
    async with browser.page() as page:
        await open_page(page, dashboard)
        shown = "[...document.querySelectorAll('#nodes .npu')]"
        await page.wait(f"{shown}.length === 32")
        assert await page.run(f"{shown}.filter((e) => e.dataset.pool === 'decode').length") == 12
        assert await page.run(f"{shown}.filter((e) => e.dataset.state === 'free').length") == 16
        title = await page.run("document.querySelector('#nodes .npu').title")
        assert re.fullmatch(r"n0\.npu0: decode d\w+, 8 sequences, 20\s% busy, HBM 44\.8\sGiB of 64\sGiB", title), title
        assert "UB 1408 MiB of 4096 MiB" in await text(page, "#nodes")
        moved = "KV over 5 s: prefill → decode 39.6 MiB/s · "
        moved += "kvcache → instances 1001.4 MiB/s · instances → kvcache < 0.1 MiB/s"
        await page.wait(f"document.querySelector('#kv-flow').textContent.replaceAll('\u00a0', ' ') === {moved!r}")
        dashboard.wish(load=0.5, supernode=True)
        await page.wait(f"{shown}.length === 384")
        await page.wait(f"document.querySelector({DECODE!r}).innerText.includes('n12-n23:\u00a096')")
        assert page.faults == []


async def test_a_dead_host_is_a_row(browser: Chromium, dashboard: FakeDashboard) -> None:
    async with browser.page() as page:
        await open_page(page, dashboard)
        assert "10.77.0.2" in await text(page, "#nodes")
        dashboard.wish(lost_host="n2")
        await page.wait("document.querySelectorAll('#nodes .node[data-state=dead]').length === 1")
        lost = await text(page, "#nodes .node[data-state=dead]")
        assert "n2" in lost
        assert "dead for 1:14" in lost
        assert "UB" not in lost
        await page.wait("document.querySelectorAll('#nodes .npu[data-state=dead]').length === 16")
        dashboard.wish(waits_s=23.4)
        await page.wait(f"document.querySelector({DECODE!r}).innerText.includes('waits for a node (23\u00a0s)')")
        assert page.faults == []


async def test_curves_are_there_after_a_reload(browser: Chromium, dashboard: FakeDashboard) -> None:
    dashboard.wish(load=0.5)
    drawn = (
        "[...document.querySelectorAll('.curve .line')].filter((e) => (e.getAttribute('d') || '').length > 99).length"
    )
    async with browser.page() as page:
        for _ in range(2):
            await open_page(page, dashboard)
            await page.wait(f"{drawn} >= 6")
        curves = await text(page, "#curves")
        for words in ("TTFT p99", "SLO 2 s", "TPOT p99", "SLO 50 ms", "means of 5 s", "4500", "2 · 3 · 1", "30 %"):
            assert words in curves, words
        assert await page.run("document.querySelector('.curve .scaled').getAttribute('d').length") > 0
        assert page.faults == []


async def test_an_event_leads_to_its_requests_and_its_log(browser: Chromium, dashboard: FakeDashboard) -> None:
    dashboard.wish(dead=["decode"])
    async with browser.page() as page:
        await open_page(page, dashboard)
        await page.wait("document.querySelector('#decisions li[data-sort=event] .command')")
        command = await text(page, "#decisions li[data-sort=event] .command")
        assert re.fullmatch(r"cloudmatrix logs d\w+", command)
        address = await page.run("document.querySelector('#decisions li[data-sort=event] a').href")
        assert re.fullmatch(rf"http://127.0.0.1:8000/requests\?from=\d+&to=\d+&find={command.split()[2]}", address)
        decision = await page.run("document.querySelector('#decisions li[data-sort=decision] a').href")
        assert re.fullmatch(r"http://127.0.0.1:8000/requests\?from=\d+&to=\d+", decision)
        await page.click("#decisions .command")
        await page.wait("document.querySelector('#decisions .command').innerText === 'copied'")
        await page.wait(f"document.querySelector('#decisions .command').innerText === {command!r}")
        assert page.faults == []


async def test_the_tiles_fill_whole_rows(browser: Chromium, dashboard: FakeDashboard) -> None:
    tops = "[...document.querySelectorAll('.tile')].map((e) => Math.round(e.getBoundingClientRect().top))"
    async with browser.page() as page:
        await open_page(page, dashboard)
        for width, columns in ((1280, 6), (1100, 3), (390, 1)):
            await page.size(width, 900)
            await page.wait(f"innerWidth === {width}")
            rows = await page.run(tops)
            assert [rows.count(top) for top in dict.fromkeys(rows)] == [columns] * (6 // columns)
            assert await page.run("document.documentElement.scrollWidth - innerWidth") <= 0
