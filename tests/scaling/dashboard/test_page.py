"""The page in a real browser, used like a person does: by mouse, by keyboard, on a phone."""

import re
import time

import pytest

from serving.scaling.dashboard.once import issue
from tests.scaling.dashboard.chromium import Chromium
from tests.scaling.dashboard.conftest import TOKEN, FakeDashboard
from tests.scaling.dashboard.opened import DECODE, LESS, MORE, NUMBER, enter_number, open_page, text

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]


async def test_it_shows_what_there_is(browser: Chromium, dashboard: FakeDashboard) -> None:
    dashboard.wish(load=0.8)
    dashboard.ask("POST", "/api/pools/decode/scale", {"replicas": 3, "by": "cli"})
    async with browser.page() as page:
        await open_page(page, dashboard)
        overview = await text(page, "#overview")
        for words in (
            "1.9 s p99", "median 210 ms", "✗ 98.4 % within 2 s (goal 99 %)", "✓ 99.9 % within 50 ms (goal 99 %)",
            "7.5/s over 1 min", "48 running, 6 queued", "11 k prompt tokens wait", "of 32", "16 free", "of 8192 MiB",
            "slo",
        ):  # fmt: skip
            assert words in overview, words
        pool = await text(page, DECODE)
        for words in ("3 serving", "room for 7", "12 (4 each)", "50 %", "11 k tokens", "n0: 4-7"):
            assert words in pool, words
        assert "draining" not in pool
        assert await page.run(f"document.querySelector({NUMBER!r}).value") == "3"
        assert "36 %" in await text(page, "article[aria-label='Pool kvcache']")
        assert "asked for by cli" in await text(page, "#decisions")
        filtered = "(() => { const s = document.querySelector('#ledger-pool'); s.value = 'kvcache';"
        await page.run(f"{filtered} s.dispatchEvent(new Event('change')); }})()")
        assert "asked for by cli" not in await text(page, "#decisions")
        assert await page.run("document.title") == "Pools · storyteller"
        assert page.faults == []
        assert {url.split("/")[2] for url in page.requested} == {dashboard.url.split("/")[2]}


async def test_curves_have_scales_and_end_with_what_the_cards_show(browser: Chromium, dashboard: FakeDashboard) -> None:
    dashboard.wish(load=0.8, dead=["decode"])
    async with browser.page() as page:
        await open_page(page, dashboard)
        dashboard.wish(load=0.8)
        await page.wait("document.querySelector('#decisions').innerText.includes('started')")
        first = "#curves figure:first-of-type"
        await page.wait(f"document.querySelector('{first} .line[d*=L]')")
        curve = await text(page, first)
        assert "1.9 s\n" in curve, "the samples' last value is not known, the card's is"
        for words in ("TTFT p99", "SLO 2 s", "3 s", "2 s", "1 s", "0"):
            assert words in curve, words
        times = f"document.querySelector('{first} .curve-times').innerText"
        assert re.fullmatch(r"(\d\d:[0-5][05]\s*){3}", await page.run(times)), "each 5 minutes of the clock"
        marks = f"(kind) => document.querySelector(`{first} .${{kind}}`).getAttribute('d').split('M').length - 1"
        counts = await page.run(f"['scaled', 'started', 'died'].map({marks})")
        assert counts == [2, 2, 1], "two decisions; replaced and started; who died"
        legend = await text(page, "#curve-legend")
        assert all(words in legend for words in ("scaled", "started", "died", "SLO", "decode replicas"))
        assert await page.run("document.querySelector('#curves figure:nth-of-type(5) .big').title") == (
            "prefill 2, decode 3, kvcache 1"
        )
        middle = "const s = document.querySelector('#curves figure:nth-of-type(2) svg'), b = s.getBoundingClientRect();"
        move = "new PointerEvent('pointermove', {clientX: b.left + b.width / 2, clientY: b.top + 9, bubbles: true})"
        await page.run(f"{{ {middle} s.dispatchEvent({move}); }}")
        pointed = await text(page, "#curves figure:nth-of-type(2)")
        assert "32 ms\nat " in pointed, "the sample that is pointed at"
        assert re.search(r"\d\d:\d\d:\d\d\n32 ms", await text(page, "#curves figure:nth-of-type(2) .tip"))
        assert pointed.split("at ")[1][:8] in await text(page, first), "the same time in every curve"
        link = "new URL(document.querySelector('#curves figure:nth-of-type(2) a').href)"
        assert await page.run(f"{link}.pathname + ' ' + {link}.host") == "/requests 127.0.0.1:8000"
        begin, end = [await page.run(f"Number({link}.searchParams.get('{key}'))") for key in ("from", "to")]
        assert end - begin == 61, "the minute before, in whole seconds"
        assert time.time() - 500 < end < time.time() - 400, "in the middle of a quarter of an hour"
        await page.click(".range:last-child")
        assert re.fullmatch(r"(\d\d:(00|15|30|45)\s*){4}", await page.run(times)), "each quarter of an hour"
        assert await page.run("location.search") == "?range=1+h"
        assert page.faults == []


async def test_ranks_stand_below_their_group_with_their_processes(browser: Chromium, dashboard: FakeDashboard) -> None:
    dashboard.wish(load=0.8, ranks=2)
    async with browser.page() as page:
        await open_page(page, dashboard)
        await page.wait(f"document.querySelector({DECODE!r}).querySelectorAll('tr[data-rank]').length === 6")
        pool = await text(page, DECODE)
        assert re.search(r"r0, pid 5000\s+n0: 0,2\s+6", pool)
        lost = f"document.querySelectorAll({DECODE + ' tr[data-rank][data-state=dead]'!r}).length"
        assert await page.run(lost) == 1
        assert "3 serving" in pool, "groups are counted"
        dashboard.wish(load=0.8)
        await page.wait(f"document.querySelector({DECODE!r}).querySelectorAll('tr[data-rank]').length === 0")
        assert page.faults == []


async def test_whoever_comes_without_the_token_is_asked_for_it(browser: Chromium, dashboard: FakeDashboard) -> None:
    async with browser.page() as page:
        assert await page.go(f"{dashboard.url}/pools") == 200
        await page.wait("document.activeElement.id === 'login-token'")
        assert "cloudmatrix serve prints it as dashboard token" in await text(page, "#login")
        assert await page.run("document.querySelector('.pool')") is None
        assert not await page.run("document.querySelector('main').offsetParent")
        await page.type("no such token")
        await page.press("Enter")
        await page.wait("document.querySelector('#login').innerText.includes('That is not the token')")
        await page.run("document.activeElement.select()")
        await page.type(f" {TOKEN} ")
        await page.press("Enter")
        await page.wait("document.querySelectorAll('.pool').length === 3")
        assert not await page.run("document.querySelector('#login').offsetParent")
        assert await page.run("document.querySelector('#login-token').value") == ""
        await page.click(MORE)
        await page.wait(f"document.querySelector({DECODE!r}).innerText.includes('4 serving')")
        assert page.faults == []


async def test_the_printed_address_lets_in_once(browser: Chromium, dashboard: FakeDashboard) -> None:
    address = f"{dashboard.url}/pools#once={issue(TOKEN, time.time())}"
    async with browser.page() as page:
        await page.send("Page.navigate", url=address)
        await page.wait("document.querySelectorAll('.pool').length === 3")
        assert await page.run("location.href") == f"{dashboard.url}/pools"
        assert await page.run("document.cookie") == "", "no script can read it"
        assert page.faults == []
    async with browser.page() as page:
        await page.send("Page.navigate", url=address)
        await page.wait("document.querySelector('#login-why')?.offsetParent")
        assert "was used before" in await text(page, "#login")
        assert await page.run("document.querySelector('.pool')") is None


async def test_presses_of_plus_are_asked_for_together(browser: Chromium, dashboard: FakeDashboard) -> None:
    dashboard.wish(start_s=1.0)
    async with browser.page() as page:
        await open_page(page, dashboard)
        await page.run(f"for (const _ of [1, 2]) document.querySelector({MORE!r}).click()")
        await page.wait(f"document.querySelector({DECODE!r}).innerText.includes('2 starting')")
        pool = await text(page, DECODE)
        assert "decode: 3 → 5" in pool
        assert re.search(r"held by page, (10:00|9:5\d) left", pool)
        assert dashboard.pool("decode")["target"] == 5
        await page.wait(f"document.querySelector({DECODE!r}).innerText.includes('5 serving')")
        assert "starting" not in await text(page, DECODE)
        asked = [url for url in page.requested if "/scale" in url]
        assert len(asked) == 1
        assert await page.run("document.querySelector('#decisions li').innerText.includes('3 → 5')")
        assert page.faults == []


async def test_a_replica_that_leaves_is_seen_leaving(browser: Chromium, dashboard: FakeDashboard) -> None:
    dashboard.wish(drain_s=1.5)
    async with browser.page() as page:
        await open_page(page, dashboard)
        await page.click(LESS)
        await page.wait(f"document.querySelector({DECODE!r}).innerText.includes('1 draining')")
        assert await page.run("document.querySelectorAll('tr[data-state=draining]').length") == 1
        await page.wait(f"!document.querySelector({DECODE!r}).innerText.includes('draining')")
        assert "2 serving" in await text(page, DECODE)


async def test_a_refusal_says_what_would_fit_and_offers_it(browser: Chromium, dashboard: FakeDashboard) -> None:
    async with browser.page() as page:
        await open_page(page, dashboard)
        await enter_number(page, "20")
        await page.wait(f"document.querySelector({DECODE!r}).innerText.includes('Refused')")
        assert "Refused: 20 replicas of decode do not fit, 7 would: an instance needs 4 NPUs" in await text(
            page, DECODE
        )
        assert dashboard.pool("decode")["target"] == 3
        await page.run(f"document.querySelector({DECODE!r}).querySelector('.answers button').id = 'take'")
        await page.click("#take")
        await page.wait(f"document.querySelector({DECODE!r}).innerText.includes('7 serving')")
        assert dashboard.pool("decode")["target"] == 7
        assert "2 are free" in await page.run(f"document.querySelector({MORE!r}).title")
        await page.click(MORE)
        refused = "Refused: 8 replicas of decode do not fit, 7 would"
        await page.wait(f"document.querySelector({DECODE!r}).innerText.includes({refused!r})")
        await page.wait(f"document.querySelector({NUMBER!r}).value === '7'")
        await page.click(LESS)
        await page.wait(f"!document.querySelector({MORE!r}).disabled && !document.querySelector({MORE!r}).title")
        dashboard.ask("POST", "/api/pools/decode/scale", {"replicas": 0})
        await page.wait(f"document.querySelector({LESS!r}).disabled && !document.querySelector({MORE!r}).disabled")


async def test_a_number_typed_while_the_page_updates_is_the_number_asked_for(
    browser: Chromium, dashboard: FakeDashboard
) -> None:
    async with browser.page() as page:
        await open_page(page, dashboard)
        await page.run(  # a poll takes long, so the refused number stays visible for a while
            "{ const real = window.fetch; window.fetch = (path, options) => path === 'api/pools' "
            "? new Promise((done) => setTimeout(done, 1000)).then(() => real(path, options)) : real(path, options); }"
        )
        await enter_number(page, "20")
        await page.wait(f"document.querySelector({DECODE!r}).innerText.includes('Refused')")
        await page.run("document.activeElement.select()")
        assert await page.run("document.activeElement.value") == "20"
        await page.wait("document.activeElement.value === '3'")
        await page.type("2")
        assert await page.run("document.activeElement.value") == "2"
        await page.press("Enter")
        await page.wait(f"document.querySelector({DECODE!r}).innerText.includes('decode: 3 → 2')")


async def test_a_hold_is_set_counted_down_and_released(browser: Chromium, dashboard: FakeDashboard) -> None:
    async with browser.page() as page:
        await open_page(page, dashboard)
        await page.run(f"document.querySelector({DECODE!r}).querySelector('select').value = '60'")
        await page.run(
            f"for (const b of document.querySelector({DECODE!r}).querySelectorAll('button'))"
            " if (['Hold', 'Release'].includes(b.textContent)) b.id = b.textContent;"
        )
        assert await page.run("document.querySelector('#Release').hidden")
        await page.click("#Hold")
        await page.wait(f"/held by page, (1:00|0:5\\d) left/.test(document.querySelector({DECODE!r}).innerText)")
        held = dashboard.pool("decode")
        assert held["target"] == 3
        assert held["hold"]["left_s"] <= 60
        await page.click("#Release")
        await page.wait("document.querySelector('#Release').hidden")
        assert dashboard.pool("decode")["hold"] is None
        assert "the autoscaler may act again" in await text(page, DECODE)


async def test_keyboard_only(browser: Chromium, dashboard: FakeDashboard) -> None:
    async with browser.page() as page:
        await open_page(page, dashboard)
        label = ""
        for _ in range(30):
            await page.press("Tab")
            label = await page.run("document.activeElement.getAttribute('aria-label') || ''")
            if label == "One replica of decode more":
                break
        assert label == "One replica of decode more"
        ring = await page.run("getComputedStyle(document.activeElement).outline")
        assert "3px" in ring
        assert "solid" in ring
        await page.press("Space")
        await page.wait(f"document.querySelector({DECODE!r}).innerText.includes('4 serving')")
        assert await page.run("document.activeElement.getAttribute('aria-label')") == label, "focus survives looks"
        await page.press("Enter")
        await page.wait(f"document.querySelector({DECODE!r}).innerText.includes('5 serving')")
        await page.run(f"document.querySelector({NUMBER!r}).focus()")
        await page.run("document.activeElement.select()")
        await page.type("1")
        assert await page.run("document.activeElement.value") == "1"
        await page.press("Escape")
        assert await page.run("document.activeElement.value") == "5"
        await page.run("document.activeElement.select()")
        await page.type("2")
        await page.press("Enter")
        await page.wait(f"document.querySelector({DECODE!r}).innerText.includes('2 serving')")
        assert await page.run(f"document.querySelector({DECODE!r}).querySelector('[role=status]').innerText")
        assert page.faults == []


async def test_a_small_screen(browser: Chromium, dashboard: FakeDashboard) -> None:
    dashboard.wish(load=1.0, drain_s=30.0, start_s=30.0)
    dashboard.ask("POST", "/api/pools/decode/scale", {"replicas": 2})
    dashboard.ask("POST", "/api/pools/prefill/scale", {"replicas": 6})
    async with browser.page(width=360, height=740) as page:
        await open_page(page, dashboard)
        await enter_number(page, "99")
        await page.wait(f"document.querySelector({DECODE!r}).innerText.includes('Refused')")
        assert await page.run("document.documentElement.scrollWidth") <= 360
        outside = "[...document.querySelectorAll('main *')].filter((e) => e.offsetParent && "
        outside += "e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.hidden')).length"
        assert await page.run(outside) == 0
        small = "[...document.querySelectorAll('button, select, input')].filter((e) => e.offsetParent && "
        small += "e.getBoundingClientRect().height < 36).length"
        assert await page.run(small) == 0
        assert page.faults == []
    dashboard.wish(drain_s=0.0, start_s=0.0)


async def test_light_and_dark_can_be_read(browser: Chromium, dashboard: FakeDashboard) -> None:
    contrast = """(() => {
      const light = (rgb) => { const [r, g, b] = rgb.match(/[\\d.]+/g).slice(0, 3).map((v) => { v /= 255;
        return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126*r + 0.7152*g + 0.0722*b; };
      const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
        if (!c.startsWith("rgba(0, 0, 0, 0")) return c; } return "rgb(255,255,255)"; };
      return Math.min(...[...document.querySelectorAll("main *, header *")]
        .filter((e) => e.offsetParent && !e.disabled)
        .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
        .map((e) => { const [a, b] = [light(getComputedStyle(e).color), light(ground(e))];
          return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); }));
    })()"""
    dashboard.wish(load=0.9)
    async with browser.page() as page:
        inks = set()
        for dark in (False, True):
            await page.dark(dark)
            await open_page(page, dashboard)
            inks.add(await page.run("getComputedStyle(document.body).color"))
            assert await page.run(contrast) >= 4.5
        assert len(inks) == 2


async def test_silence_is_said_and_ends(browser: Chromium, dashboard: FakeDashboard) -> None:
    async with browser.page() as page:
        await open_page(page, dashboard)
        dashboard.wish(silent=True)
        await page.wait("document.querySelector('#trouble').offsetParent !== null")
        assert await text(page, "#trouble") == "The scaling board does not answer (TimeoutError); try again"
        assert (await text(page, "#live")).startswith("no answer, as of ")
        assert "3 serving" in await text(page, DECODE), "what was seen last stays"
        dashboard.wish(lost=True)
        await page.wait("document.querySelector('#live').innerText === 'live'")
        assert "The autoscaler does not answer" in await text(page, "#trouble")
        assert "no answer" in await text(page, "#overview")
        dashboard.wish(seen_s=12.0)
        await page.wait("document.querySelector('#live').innerText === 'as of 12\u00a0s ago'")
        assert "Serve controller does not answer" in await text(page, "#trouble")
        dashboard.wish()
        await page.wait("document.querySelector('#trouble').offsetParent === null")


async def test_a_number_by_hand_is_held_as_long_as_its_hold(browser: Chromium, dashboard: FakeDashboard) -> None:
    chip = "document.querySelector('#decisions .chip').innerText"
    async with browser.page() as page:
        await open_page(page, dashboard)
        dashboard.ask("POST", "/api/pools/decode/scale", {"replicas": 4, "hold_s": 60})
        await page.wait(f"{chip} === 'held'")
        dashboard.ask("POST", "/api/pools/decode/scale", {"replicas": 3, "hold_s": 0})
        await page.wait("document.querySelectorAll('#decisions li').length === 4")
        chips = "[...document.querySelectorAll('#decisions .chip')].slice(0, 2).map((e) => e.innerText)"
        assert await page.run(chips) == ["by hand", "by hand"]


async def test_without_an_autoscaler_there_is_nothing_to_hold(browser: Chromium, dashboard: FakeDashboard) -> None:
    dashboard.wish(policy="none", lost=True)
    async with browser.page() as page:
        await open_page(page, dashboard)
        assert "only people scale" in await text(page, "#overview")
        assert await page.run("document.querySelector('#trouble').offsetParent") is None
        assert await page.run("[...document.querySelectorAll('.keep')].every((e) => e.hidden)")
        await page.click(MORE)
        await page.wait(f"document.querySelector({DECODE!r}).innerText.includes('4 serving')")


async def test_a_cookie_that_ends_asks_for_the_token_again(browser: Chromium, dashboard: FakeDashboard) -> None:
    async with browser.page() as page:
        await open_page(page, dashboard)
        await page.send("Network.clearBrowserCookies")
        await page.wait("document.activeElement.id === 'login-token'")
        assert not await page.run("document.querySelector('main').offsetParent")
        await page.type(TOKEN)
        await page.press("Enter")
        await page.wait("document.querySelector('main').offsetParent && document.querySelector('.pool').offsetParent")


async def test_a_page_of_an_earlier_server_goes_on(browser: Chromium, dashboard: FakeDashboard) -> None:
    async with browser.page() as page:
        await open_page(page, dashboard)
        await page.run("window.real = window.fetch")
        await page.run(  # its first command is sent with the earlier server's nonce
            "window.fetch = (path, given) => { if (path.includes('/scale') && !window.once) { window.once = true;"
            " given.headers = {'X-Pools-Nonce': 'of-another-server'}; } return window.real(path, given); }; 0"
        )
        await page.click(MORE)
        await page.wait(f"document.querySelector({DECODE!r}).innerText.includes('4 serving')")
        assert len([url for url in page.requested if "/scale" in url]) == 2


async def test_it_rests_while_nobody_looks(browser: Chromium, dashboard: FakeDashboard) -> None:
    async with browser.page() as page:
        await open_page(page, dashboard)
        hide = "Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}}),"
        hide += " document.dispatchEvent(new Event('visibilitychange'))"
        await page.run(hide.format("true"))
        await page.wait("document.querySelector('#live').innerText === 'paused'")
        looks = len(page.requested)
        await page.run("new Promise((done) => setTimeout(done, 1500))")
        assert len(page.requested) <= looks + 1, "one may have been under way"
        await page.run(hide.format("false"))
        await page.wait("document.querySelector('#live').innerText === 'live'")
        assert len(page.requested) > looks
