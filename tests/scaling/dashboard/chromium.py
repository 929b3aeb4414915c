"""Headless Chromium, driven over its DevTools protocol: real clicks, keys, cookies and same-origin rules."""

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from tests.loadgen.report.browser import chromium

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--remote-debugging-port=0", "--remote-allow-origins=*", "--disable-extensions", "--disable-default-apps",
)  # fmt: skip
PATIENCE_S = 60.0
KEYS = {
    "Tab": (9, ""), "Enter": (13, "\r"), "Escape": (27, ""), "Space": (32, " "), "ArrowUp": (38, ""),
    "Backspace": (8, ""),
}  # fmt: skip
STEADY_MIDDLE = """async (selector) => {
  const frame = () => new Promise(requestAnimationFrame);
  await frame();
  const element = document.querySelector(selector);
  if (!element) return null;
  element.scrollIntoView({ block: "center" });
  const box = () => element.getBoundingClientRect();
  const before = box();
  await frame();
  const after = box();
  const still = ["x", "y", "width", "height"].every((side) => before[side] === after[side]);
  const [x, y] = [after.x + after.width / 2, after.y + after.height / 2];
  return still && element.contains(document.elementFromPoint(x, y)) ? { x, y } : null;
}"""
"""Where to click an element: null while its box differs between two frames, or its middle belongs to another one."""


class Chromium:
    """One browser process; its pages share no state."""

    def __init__(self, profile: Path) -> None:
        self._profile = profile
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""

    def __enter__(self) -> Self:
        command = [chromium(), *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        with (self._profile.parent / "chromium.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        told, end = self._profile / "DevToolsActivePort", time.monotonic() + PATIENCE_S
        while not told.exists() or "\n" not in told.read_text():
            assert time.monotonic() < end, "Chromium does not start"
            time.sleep(0.05)
        port, path = told.read_text().splitlines()[:2]
        self.address = f"ws://127.0.0.1:{port}{path}"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(60)
        shutil.rmtree(self._profile, ignore_errors=True)

    @asynccontextmanager
    async def page(self, width: int = 1280, height: int = 900) -> AsyncIterator["Page"]:
        """A page in a new context: no cookies yet."""
        async with aiohttp.ClientSession() as session, session.ws_connect(self.address, max_msg_size=0) as socket:
            page = Page(socket)
            reader = asyncio.create_task(page.read())
            try:
                await page.open(width, height)
                yield page
            finally:
                await page.close()
                reader.cancel()


class NavigatedError(Exception):
    """Raised when the page was left while a command ran in it."""


class Page:
    """A person's actions on a page, and their results.

    Args:
        requested: every requested address.
        faults: errors of scripts and of the page's security policy.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.requested: list[str] = []
        self.faults: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session = ""
        self._context = ""

    async def open(self, width: int, height: int) -> None:
        """Create the page."""
        self._context = (await self.send("Target.createBrowserContext"))["browserContextId"]
        target = await self.send("Target.createTarget", url="about:blank", browserContextId=self._context)
        attached = await self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self.send(f"{domain}.enable")
        await self.size(width, height)

    async def close(self) -> None:
        """Close the page and delete its cookies."""
        self._session = ""
        await self.send("Target.disposeBrowserContext", browserContextId=self._context)

    async def read(self) -> None:
        """Read the browser's messages while there are any."""
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                if not (waiting := self._waiting.pop(said["id"])).done():  # the caller may have given up
                    waiting.set_result(said)
            elif said["method"] == "Network.requestWillBeSent":
                self.requested.append(said["params"]["request"]["url"])
            elif said["method"] == "Runtime.exceptionThrown":
                details = said["params"]["exceptionDetails"]
                self.faults.append(details.get("exception", {}).get("description", details["text"]))
            elif said["method"] == "Log.entryAdded" and said["params"]["entry"]["source"] == "security":
                self.faults.append(said["params"]["entry"]["text"])

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol. Returns: its result. Raises: NavigatedError."""
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        command: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        await self._socket.send_json(command)
        said = await asyncio.wait_for(self._waiting[number], PATIENCE_S)
        if "navigated or closed" in said.get("error", {}).get("message", ""):
            raise NavigatedError(method)
        assert "error" not in said, (method, said["error"])
        result: dict[str, Any] = said["result"]
        return result

    # ---- what a person does ------------------------------------------------------------------------------------------

    async def go(self, url: str) -> int:
        """Open an address. Returns: the HTTP status."""
        await self.send("Page.navigate", url=url)
        await self.wait(f"document.readyState === 'complete' && location.href === {json.dumps(url)}")
        status: int = await self.run("performance.getEntriesByType('navigation')[0].responseStatus")
        return status

    async def log_in(self, url: str, token: str) -> None:
        """Log in like Ray's dashboard."""
        await self.go(f"{url}/favicon.ico")
        body = f"{{method: 'POST', headers: {{Authorization: 'Bearer {token}'}}}}"
        assert await self.run(f"fetch('/api/authenticate', {body}).then((answer) => answer.status)") == 200

    async def run(self, script: str) -> Any:
        """Evaluate an expression in the page; promises are awaited."""
        told = await self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    async def wait(self, condition: str, patience_s: float = PATIENCE_S) -> None:
        """Wait until an expression holds, across pages if necessary."""
        end = time.monotonic() + patience_s
        while True:
            with suppress(NavigatedError):
                if await self.run(f"Boolean({condition})"):
                    return
                text = await self.run("document.body?.innerText")
                assert time.monotonic() < end, f"still not so: {condition}\n{text}"
            await asyncio.sleep(0.03)

    async def click(self, selector: str) -> None:
        """Press and release the mouse in the middle of an element, once it stands still and is not covered."""
        end = time.monotonic() + PATIENCE_S
        while (place := await self.run(f"({STEADY_MIDDLE})({json.dumps(selector)})")) is None:
            assert time.monotonic() < end, f"{selector} does not stand still, or something covers it"
        for kind in ("mousePressed", "mouseReleased"):
            await self.send("Input.dispatchMouseEvent", type=kind, **place, button="left", clickCount=1)

    async def press(self, key: str, times: int = 1) -> None:
        """Press a key of the keyboard."""
        code, text = KEYS[key]
        name = " " if key == "Space" else key
        given = {"key": name, "code": key, "windowsVirtualKeyCode": code, "text": text}
        for _ in range(times):
            await self.send("Input.dispatchKeyEvent", type="keyDown", **given)
            await self.send("Input.dispatchKeyEvent", type="keyUp", key=name, code=key, windowsVirtualKeyCode=code)

    async def type(self, text: str) -> None:
        """Type into the focused element."""
        await self.send("Input.insertText", text=text)

    async def size(self, width: int, height: int) -> None:
        """The window's size, as a phone's if it is narrow."""
        phone = width < 500
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )

    async def dark(self, wanted: bool) -> None:
        """Set the system's colour preference."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if wanted else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[feature])

    async def view(self) -> bytes:
        """The visible part of the page, as PNG."""
        shot = await self.send("Page.captureScreenshot", format="png")
        return base64.b64decode(shot["data"])

    async def colors(self) -> set[str]:
        """All colours of the visible part, as `#rrggbb`."""
        picture = base64.b64encode(await self.view()).decode()
        await self.send("Page.navigate", url="about:blank")  # a page's own policy lets in no such image
        found: list[str] = await self.run(f"""(async () => {{
          const image = new Image(); image.src = "data:image/png;base64,{picture}"; await image.decode();
          const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
          context.drawImage(image, 0, 0);
          const pixels = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer);
          const hex = (one, shift) => ((one >> shift) & 255).toString(16).padStart(2, "0");
          return [...new Set(pixels)].map((one) => `#${{hex(one, 0)}}${{hex(one, 8)}}${{hex(one, 16)}}`);
        }})()""")
        return set(found)

    async def picture(self) -> bytes:
        """The whole page, as PNG."""
        shot = await self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])
