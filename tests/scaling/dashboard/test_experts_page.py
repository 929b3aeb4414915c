"""The page of the experts in a real browser."""

import json

import pytest

from tests.scaling.dashboard.chromium import Chromium, Page
from tests.scaling.dashboard.conftest import TOKEN, FakeDashboard
from tests.scaling.dashboard.opened import text

pytestmark = pytest.mark.timeout(120)

GROUP = "article[aria-label='Group decode#k3jx9a']"


async def open_experts(page: Page, dashboard: FakeDashboard, wish: str) -> None:
    """Log in and wait for the group, or for the message instead of one."""
    dashboard.wish(experts=wish)
    await page.log_in(dashboard.url, TOKEN)
    assert await page.go(f"{dashboard.url}/experts") == 200
    await page.wait("document.querySelector('#live').innerText === 'live'")


async def cell(page: Page, layer: int, expert: int) -> dict[str, str]:
    """One cell of the heat map: mark, tooltip, and text for screen readers."""
    at = f".heat tbody tr:nth-child({layer + 1}) td:nth-child({expert + 2})"
    found = f"(() => {{ const e = document.querySelector({at!r}); return JSON.stringify({{mark: e.dataset.mark, "
    told: dict[str, str] = json.loads(await page.run(found + "title: e.title, read: e.textContent}); })()"))
    return told


@pytest.mark.asyncio
async def test_a_group_and_its_experts(browser: Chromium, dashboard: FakeDashboard) -> None:
    async with browser.page() as page:
        await open_experts(page, dashboard, "small")
        group = await text(page, GROUP)
        for words in (
            "epoch 3",
            "map 7",
            "2 ranks",
            "Balancedness 0.",
            "Rows by layer and expert",
            "Busiest: draft layer expert 4",
        ):
            assert words in group, words
        assert await page.run("document.querySelectorAll('.heat .cell').length") == 3 * 8
        alone, shared = await cell(page, 0, 1), await cell(page, 2, 4)
        assert alone["title"].endswith("held by r0")
        assert alone["mark"] == ""
        assert shared["title"].startswith("draft layer, expert 4: ")
        assert (await cell(page, 1, 1))["title"].startswith("layer 2, expert 1: ")
        heads = await page.run("[...document.querySelectorAll('.heat tbody th')].map((e) => e.innerText)")
        assert heads == ["1", "2", "draft"]
        assert "counts those with experts, from 0" in group
        assert shared["title"].endswith("held by r0, r1")
        assert (shared["mark"], shared["read"]) == ("redundant", shared["title"])
        assert "pid 5001" in group
        assert "r1, 3.5 s" in group, "r0 waits for r1"
        assert await page.run("document.querySelectorAll('.matrix').length") == 2
        assert await text(page, ".matrix tbody tr:first-child") == "r0\t\t11 MiB", "rows to r1, and results for r1's"
        moves = await text(page, ".rebalances")
        assert "load, global: 3 moves in 2 layers; 7 % of a layer's time to gain; took 1.3 s" in moves
        assert "r1 is late" in moves
        assert await page.run("document.title") == "Experts · storyteller"
        assert page.faults == []
        assert {url.split("/")[2] for url in page.requested} == {dashboard.url.split("/")[2]}


@pytest.mark.asyncio
async def test_a_lost_rank_is_named_and_its_experts_are_marked(browser: Chromium, dashboard: FakeDashboard) -> None:
    async with browser.page() as page:
        await open_experts(page, dashboard, "small")
        await page.run("window.kept = document.querySelector('.heat .cell')")
        dashboard.wish(experts="lost")
        await page.wait(f"document.querySelector({GROUP!r}).innerText.includes('1 of 2 ranks')")
        assert "missing" in await text(page, ".ranks tbody tr:nth-child(2)")
        borrowed = await cell(page, 0, 6)
        assert borrowed["mark"] == "borrowed"
        assert borrowed["title"].endswith("held by r0 in place of a lost rank")
        assert await page.run("window.kept === document.querySelector('.heat .cell')"), "nodes stay"
        assert page.faults == []


@pytest.mark.asyncio
async def test_a_group_is_resized_and_a_rank_drained_by_hand(browser: Chromium, dashboard: FakeDashboard) -> None:
    async with browser.page() as page:
        await open_experts(page, dashboard, "small")
        before = await page.run("document.querySelector('.heat').getBoundingClientRect().top")
        await page.click("[aria-label='Ranks of decode#k3jx9a']")
        await page.run("document.activeElement.select()")
        await page.type("4")
        await page.press("Enter")
        await page.wait("document.querySelector('.answer').innerText === '4 ranks, asked for by page'")
        await page.click(".orders > button")
        await page.wait("document.querySelector('.answer').innerText === '3 moves begin, asked for by page'")
        await page.click("[aria-label='Drain rank 1']")
        await page.wait("document.querySelector('.answer').innerText === 'r1 drains, asked for by page'")
        assert await page.run("document.querySelector('.heat').getBoundingClientRect().top") == before
        dashboard.wish(experts="lost")
        await page.wait("document.querySelector(\"[aria-label='Drain rank 1']\").disabled")
        await page.click("[aria-label='Drain rank 0']")
        await page.wait("document.querySelector('.answer').innerText === 'rank 1 is missing'")
        assert page.faults == []


@pytest.mark.parametrize("order", ["rebalance?", "drain?rank=1", "resize?ranks=4"])
def test_only_the_page_may_order_by_get(dashboard: FakeDashboard, order: str) -> None:
    path = f"/api/experts/{order}&group=decode%23k3jx9a"
    dashboard.wish(experts="small")
    status, _, told = dashboard.ask("GET", path)
    assert (status, told["error"]["kind"]) == (403, "stale")
    nonce = dashboard.ask("GET", "/api/experts")[1]["X-Pools-Nonce"]
    assert dashboard.ask("GET", path, Sec_Fetch_Site="same-site", X_Pools_Nonce=nonce)[0] == 403
    assert dashboard.ask("GET", path.replace("k3", "xx"), X_Pools_Nonce=nonce)[0] == 404
    assert dashboard.ask("GET", path, X_Pools_Nonce=nonce)[0] == 200
    dashboard.wish(experts="lost")
    assert dashboard.ask("GET", path, X_Pools_Nonce=nonce)[0] == 409


@pytest.mark.asyncio
async def test_a_large_model_stays_small(browser: Chromium, dashboard: FakeDashboard) -> None:
    """58 layers of 256 experts on 32 ranks."""
    async with browser.page() as page:
        await open_experts(page, dashboard, "large")
        group = await text(page, GROUP)
        assert "Rows by layer and rank" in group
        assert "Busiest: layer 0 expert 5" in group
        assert await page.run("document.querySelectorAll('.heat .cell').length") == 58 * 32
        assert await page.run("[...document.querySelectorAll('.matrix')].every((e) => e.hidden)")
        assert await page.run("document.querySelectorAll('.largest li').length") == 20, "ten pairs of each"
        assert await page.run("document.querySelectorAll('*').length") < 6000
        assert await page.run("document.body.scrollHeight") < 3000
        assert len(json.dumps(dashboard.ask("GET", "/api/experts")[2])) < 60_000
        await page.size(390, 740)
        for wish, cells in (("large", 58 * 32), ("wide", 16 * 64)):
            dashboard.wish(experts=wish)
            await page.wait(f"document.querySelectorAll('.heat .cell').length === {cells}")
            assert await page.run("document.documentElement.scrollWidth") <= 390, f"{wish} sticks out of a phone"
        assert page.faults == []


@pytest.mark.parametrize(("wish", "words"), [("", "ep is 1 everywhere"), ("starting", "No rank of decode")])
@pytest.mark.asyncio
async def test_without_a_group_it_says_why(browser: Chromium, dashboard: FakeDashboard, wish: str, words: str) -> None:
    async with browser.page() as page:
        await open_experts(page, dashboard, wish)
        assert words in await text(page, "main")
        assert await page.run("document.querySelector('.group')") is None
        await page.run("document.querySelector('nav a[href=pools]').click()")
        await page.wait("location.pathname === '/pools' && document.querySelectorAll('.pool').length === 3")
        await page.run("document.querySelector('nav a[href=experts]').click()")
        await page.wait("location.pathname === '/experts' && document.querySelector('#no-group')?.offsetParent")
        assert page.faults == []


@pytest.mark.asyncio
async def test_whoever_comes_without_the_token_sees_nothing(browser: Chromium, dashboard: FakeDashboard) -> None:
    dashboard.wish(experts="small")
    assert dashboard.ask("GET", "/api/experts", token=None)[0] == 401
    async with browser.page() as page:
        assert await page.go(f"{dashboard.url}/experts") == 200
        await page.wait("document.activeElement.id === 'login-token'")
        assert await page.run("document.querySelector('.group')") is None
        await page.type(TOKEN)
        await page.press("Enter")
        await page.wait(f"document.querySelector({GROUP!r})?.offsetParent")
        assert page.faults == []
