"""The endpoint's pages in a real browser: a conversation, a stop, an error; light, dark, and on a phone."""

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from serving.errors import EngineError
from serving.gateway.api.admin.timeline_routes import timeline_router
from serving.gateway.api.settings import ApiSettings, ServedModel, hash_api_key
from serving.values.sequence import PoolUse
from tests.fakes.kv_hints import FakeKvHints
from tests.fakes.timelines import KeptTimelines
from tests.gateway.api.support import Harness, running_server
from tests.scaling.dashboard.chromium import Chromium, Page

POOLS = "http://127.0.0.1:8265/pools"
TALK = "document.querySelector('#talk').innerText"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("chromium") / "profile") as running:
        yield running


async def converse(harness: Harness, page: Page, url: str) -> None:
    harness.script_of = lambda _: harness.say("Once <b>upon</b> a time", cached_tokens=4, pool=PoolUse(3))
    assert await page.go(f"{url}/") == 200
    await page.click(".question")
    await page.wait(f"{TALK}.includes('prefill#a → decode#b')")
    talk = await page.run(TALK)
    assert "Once <b>upon</b> a time" in talk, "text, not HTML"
    assert "4 cached, 3 of them pulled from the pool" in talk
    await page.click("#message")
    await page.type("And then?")
    await page.press("Enter")
    await page.wait("document.querySelectorAll('#talk .figures').length === 2")
    first, second = (job.sequences[0].prompt for job in harness.backend.jobs)
    assert second[: len(first)] == first, "the conversation goes on"


async def regenerate_edit_and_come_back(harness: Harness, page: Page, url: str) -> None:
    harness.script_of = lambda _: harness.say("**bold** [a](javascript:alert(1)) ![b](http://elsewhere/b.png)\n\n- one")
    await page.click("#talk .acts:last-child button:last-child")
    await page.wait("document.querySelector('#talk li')?.innerText === 'one'")
    assert await page.run("document.querySelector('#talk strong').innerText") == "bold"
    assert await page.run("[...document.querySelectorAll('#talk img, #talk a[href]')].length") == 0, "nothing loads"
    assert harness.backend.jobs[-1].sequences[0].prompt == harness.backend.jobs[-2].sequences[0].prompt
    harness.script_of = lambda _: harness.say("Else")
    await page.click("#talk .acts button:last-child")
    assert "a little dog" in await page.run("document.querySelector('#message').value")
    await page.press("Enter")
    await page.wait(f"{TALK}.includes('Else') && document.querySelectorAll('#talk .figures').length === 1")
    await page.click("#wishes summary")
    await page.click("#seed")
    await page.type("7")
    assert await page.go(f"{url}/") == 200
    await page.wait("document.querySelectorAll('#past li').length === 1")
    assert await page.run("document.querySelector('#seed').value") == "7"
    await page.click("#history summary")
    await page.click("#past li button")
    await page.wait(f"{TALK}.includes('Else')")
    await page.click("#clear")
    await page.click("#history summary")
    await page.click("#past li button:last-child")
    assert await page.run("document.querySelectorAll('#past li').length") == 0
    await page.click("#message")


async def stop_and_fail(harness: Harness, page: Page) -> None:
    harness.script_of = lambda _: harness.say("Once upon", hang_after=2)
    await page.type("Wait")
    await page.press("Enter")
    await page.wait(
        "document.querySelector('#send').innerText === 'Stop' && document.querySelector('.coming')?.innerText"
    )
    await page.click("#send")
    await page.wait(f"{TALK}.includes('stopped')")
    harness.script_of = lambda _: harness.say("", fail_after=0, error=EngineError("broken"))
    await page.type("Fail")
    await page.press("Enter")
    await page.wait("document.querySelector('#talk .fault')")
    await page.click("#clear")
    assert await page.run(TALK) == ""
    assert await page.run("document.querySelector('#questions').hidden") is False


def test_a_conversation_with_the_key_that_was_entered(browser: Chromium, served: ServedModel) -> None:
    """The page sends the key with every request."""
    closed = Harness(served, ApiSettings(version="1.2.3", api_key_hashes=(hash_api_key("one"),)))

    async def play(url: str) -> None:
        async with browser.page() as page:
            await page.send("Page.navigate", url=f"{url.replace('//', '//anybody:one@')}/docs")  # enters it
            await page.wait("document.querySelector('h1')?.textContent === 'API'")
            page.requested.clear()
            await converse(closed, page, url)
            await regenerate_edit_and_come_back(closed, page, url)
            await stop_and_fail(closed, page)
            assert page.faults == []
            asked = {one.partition("?")[0] for one in page.requested}
            assert asked <= {f"{url}/", f"{url}/v1/chat/completions", f"{url}/v1/models", "data:,"}

    with running_server(closed.app) as url:
        asyncio.run(play(url))


def test_past_requests_are_listed_filtered_and_opened(browser: Chromium, served: ServedModel) -> None:
    harness = Harness(served)
    requests = [(f"chatcmpl-{number}", "acme" if number % 2 else "other", 1.0 + number) for number in range(6)]
    requests[0] = ("chatcmpl-0", "other", 9.0)  # slow, so that it is kept when it is no longer among the latest five
    harness.app.include_router(timeline_router(KeptTimelines(*requests, latest=5)))
    rows = "[...document.querySelectorAll('#rows tbody tr')]"

    async def look(url: str) -> None:
        async with browser.page() as page:
            assert await page.go(f"{url}/requests") == 200
            await page.wait(f"{rows}.length === 6")
            await page.click("#rows th:nth-child(5) button")  # by duration, the longest first
            assert await page.run(f"{rows}[0].cells[1].innerText") == "chatcmpl-0"
            await page.click("#wanted")
            await page.type("acme")
            await page.wait(f"{rows}.length === 3")
            await page.click("#rows tbody td")
            await page.wait("document.querySelector('#one table')")
            shown = await page.run("document.querySelector('#one').innerText")
            assert all(word in shown for word in ("chatcmpl-5", "why", "prefill", "1.50 s", "n0, prefill#a"))
            await page.go(f"{url}/requests#chatcmpl-4")
            await page.wait("document.querySelector('#one h2')?.innerText.startsWith('chatcmpl-4')")
            await page.go(f"{url}/requests?from=4&to=9&find=acme")  # as the page of the pools links
            await page.wait(f"{rows}.length === 2")
            found = await page.run(f"{rows}.map((row) => row.cells[1].innerText).sort()")
            assert found == ["chatcmpl-3", "chatcmpl-5"]
            await page.click("#span")
            await page.wait(f"{rows}.length === 3")
            assert await page.run("location.search") == "?find=acme"
            await page.go(f"{url}/requests?to=-1")
            await page.wait("document.querySelector('#count').innerText === '0 of 6'")
            assert page.faults == []

    with running_server(harness.app) as url:
        asyncio.run(look(url))


def test_sessions_are_listed(browser: Chromium, served: ServedModel) -> None:
    hints = FakeKvHints({("default", "<b>s</b>", ""): 3, ("acme", "other", ""): 1})
    text = "document.querySelector('#sessions tbody')?.innerText"

    async def look(url: str) -> None:
        async with browser.page() as page:
            assert await page.go(f"{url}/sessions") == 200
            await page.wait(f"{text}.includes('<b>s</b>')")
            shown = await page.run(text)
            assert all(word in shown for word in ("trunk", "3.0", "13 s", "retain accepted"))
            assert await page.run("document.querySelector('#state').innerText") == "1 of tenant default"
            await page.go(f"{url}/sessions?namespace=acme")
            await page.wait(f"{text}.includes('other')")
            assert page.faults == []

    with running_server(Harness(served, hints=hints).app) as url:
        asyncio.run(look(url))


def test_pages_fit_and_follow_the_readers_theme(browser: Chromium, served: ServedModel) -> None:
    async def look(url: str) -> None:
        async with browser.page() as page:
            for path, (width, theme) in itertools.product(
                ("/", "/requests", "/sessions", "/docs"), ((1280, "light"), (390, "dark"))
            ):
                await page.size(width, 844)
                await page.dark(theme == "dark")
                assert await page.go(f"{url}{path}") == 200
                await page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
                assert await page.run("document.documentElement.scrollWidth - innerWidth") <= 0, (path, width)
                assert await page.run("document.documentElement.dataset.theme") == theme
            assert page.faults == []
            assert {one for one in page.requested if not one.startswith((url, "data:"))} == set()

    hints = FakeKvHints({("default", "0199a213-81c0-7800-8aa1-bbab2a035a53", "agent"): 3})
    harness = Harness(served, ApiSettings(version="1.2.3", pools_page=POOLS), hints=hints)
    harness.app.include_router(timeline_router(KeptTimelines(("chatcmpl-1", "acme", 1.0))))
    with running_server(harness.app) as url:
        asyncio.run(look(url))
