"""A hostile page in the logged-in browser, on another port of this machine (the same *site*, so the cookie is sent),
tries every way in which a page can make requests. Real Chromium, real cookie.
"""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.scaling.dashboard.chromium import Chromium
from tests.scaling.dashboard.conftest import TOKEN, FakeDashboard

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

ATTACKS = {
    "fetch": "fetch(`${victim}/api/pools/decode/scale?replicas=1`, {credentials: 'include', mode: 'no-cors'})",
    "fetch without referrer": (
        "fetch(`${victim}/api/pools/decode/scale?replicas=1`,"
        " {credentials: 'include', mode: 'no-cors', referrerPolicy: 'no-referrer'})"
    ),
    "fetch with the header": (
        "fetch(`${victim}/api/pools/decode/scale?replicas=1`,"
        " {credentials: 'include', headers: {'X-Pools-Nonce': 'guess'}})"
    ),
    "post": (
        "fetch(`${victim}/api/pools/decode/scale`,"
        " {method: 'POST', credentials: 'include', mode: 'no-cors', body: JSON.stringify({replicas: 1})})"
    ),
    "image": (
        "new Promise((done) => { const i = new Image(); i.onload = i.onerror = done;"
        " i.src = `${victim}/api/pools/decode/scale?replicas=1`; document.body.append(i); })"
    ),
    "script": (
        "new Promise((done) => { const s = document.createElement('script'); s.onload = s.onerror = done;"
        " s.src = `${victim}/api/pools/decode/scale?replicas=1`; document.body.append(s); })"
    ),
    "frame": (
        "new Promise((done) => { const f = document.createElement('iframe'); f.onload = done;"
        " f.src = `${victim}/api/pools/decode/release`; document.body.append(f); })"
    ),
    "form": (
        "new Promise((done) => { const f = document.createElement('iframe'); f.name = 'f'; document.body.append(f);"
        " const form = document.createElement('form'); form.method = 'post'; form.target = 'f';"
        " form.action = `${victim}/api/pools/decode/scale`; document.body.append(form); f.onload = done;"
        " form.submit(); setTimeout(done, 500); })"
    ),
}


class _Blank(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!DOCTYPE html><title>elsewhere</title><body>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[str]:
    """Another server of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Blank)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


async def test_a_page_of_another_port_changes_nothing(
    browser: Chromium, dashboard: FakeDashboard, elsewhere: str
) -> None:
    dashboard.ask("POST", "/api/pools/decode/hold", {"hold_s": 600})
    async with browser.page() as page:
        await page.log_in(dashboard.url, TOKEN)
        for name, attack in ATTACKS.items():
            await page.go(f"{elsewhere}/{name.replace(' ', '-')}")
            page.requested.clear()
            await page.run(f"(() => {{ const victim = '{dashboard.url}'; return {attack}; }})().catch(() => 0)")
            assert any(dashboard.url in url for url in page.requested), f"{name} was carried out"
            pool = dashboard.pool("decode")
            assert pool["target"] == 3, name
            assert pool["hold"] is not None, name


async def test_the_cookie_did_go_along_and_told_nothing(
    browser: Chromium, dashboard: FakeDashboard, elsewhere: str
) -> None:
    """The attack of the test above is real: the same site's cookie is sent, and only our rules prevent access."""
    async with browser.page() as page:
        await page.log_in(dashboard.url, TOKEN)
        await page.go(f"{elsewhere}/")
        reads = f"fetch('{dashboard.url}/api/pools', {{credentials: 'include'}}).then(() => 'read', () => 'not')"
        assert await page.run(reads) == "not"
        await page.go(f"{dashboard.url}/api/pools/decode/scale?replicas=1")
        assert "stale" in await page.run("document.body.innerText"), "logged in, yet not from the page"
    assert dashboard.pool("decode")["target"] == 3


async def test_another_page_cannot_frame_it(browser: Chromium, dashboard: FakeDashboard, elsewhere: str) -> None:
    async with browser.page() as page:
        await page.log_in(dashboard.url, TOKEN)
        await page.go(f"{elsewhere}/")
        await page.run(
            "new Promise((done) => { const f = document.createElement('iframe'); f.onload = done;"
            f" f.src = '{dashboard.url}/pools'; document.body.append(f); }})"
        )
        assert any("frame" in fault.lower() for fault in page.faults), page.faults
        assert not any("main.js" in url for url in page.requested)
