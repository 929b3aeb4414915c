"""A person at `/pools` of a real system: no access without the token, login by the printed address, then one instance
more, too many, one less.
"""

import json
import time
import urllib.error
from typing import Any

import pytest

from serving.scaling.dashboard.once import issue
from tests.e2e.server import PATIENCE_S, Server
from tests.scaling.dashboard.chromium import Chromium, Page

DECODE = "document.querySelector(\"article[aria-label='Pool decode']\").innerText"


async def grow_and_shrink_by_hand(server: Server, browser: Chromium) -> None:
    """With one decode instance running and capacity for at most three."""
    url, token = server.printed("Ray dashboard"), server.printed("dashboard token")
    for path in ("/api/pools", "/api/pools/decode/scale?replicas=2"):
        with pytest.raises(urllib.error.HTTPError, match="401") as caught:
            server.get(path, url=url)
        caught.value.close()
    async with browser.page() as page:
        printed = server.printed("pools page")
        assert printed.startswith(f"{url}/pools#once=")
        await page.send("Page.navigate", url=f"{url}/pools#once={issue(token, time.time())}")  # that one may be too old
        await page.wait("document.querySelectorAll('.pool').length === 3", PATIENCE_S)
        assert "1 serving" in await page.run(DECODE)
        await page.click("[aria-label='One replica of decode more']")
        await page.wait(f"{DECODE}.includes('2 serving')", PATIENCE_S)
        await ask_for(page, 9)
        await page.wait(f"{DECODE}.includes('Refused: 9 replicas of decode do not fit, 3 would')", PATIENCE_S)
        await ask_for(page, 1)
        await page.wait(f"{DECODE}.includes('1 serving') && !{DECODE}.includes('draining')", PATIENCE_S)
        decisions = await page.run("document.querySelector('#decisions').innerText")
        assert "1 → 2" in decisions
        assert "2 → 1" in decisions
        assert page.faults == []
    refused = refusal(server, url, token)
    assert refused["kind"] == "no_room"
    assert refused["fits"] == 3


async def ask_for(page: Page, replicas: int) -> None:
    """Type a number, and press Enter."""
    await page.click("[aria-label='Replicas of decode']")
    await page.run("document.activeElement.select()")
    await page.type(str(replicas))
    await page.press("Enter")


def refusal(server: Server, url: str, token: str) -> dict[str, Any]:
    """The same request by JSON. Returns: the refusal."""
    with pytest.raises(urllib.error.HTTPError, match="409") as caught:
        server.post("/api/pools/decode/scale", {"replicas": 9}, url=url, headers={"Authorization": f"Bearer {token}"})
    with caught.value as error:
        answer: dict[str, Any] = json.loads(error.read())["error"]
    return answer
