#!/usr/bin/env python3
"""One long response, twice: undisturbed, and with the instance that computes it killed in the middle.

Shows: what a client observes when a decode instance dies. The gateway continues from its own record of the stream, on
another instance; if there is none, on Ray Serve's replacement, or on prefill until the replacement is ready.

    make serve                              # in another terminal
    python examples/kill.py                 # or: python examples/kill.py http://127.0.0.1:9000

Expect a pause at the kill, of two seconds without a spare instance or of a fifth of a second with one, and the same
text:

    undisturbed   1,500 tokens, longest gap    31 ms
    kill -9 27744 (decode#jinlcc3y) after 300 tokens
    killed        1,500 tokens, longest gap 2,104 ms
    the same text
"""

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

TOKENS, KILL_AFTER = 1500, 300


def stream(url: str) -> Iterator[str]:
    """Yield the text of one long response as it arrives, about one piece per token."""
    body = {"prompt": "Once upon a time", "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0, "stream": True}
    sent = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), sent)
    with urllib.request.urlopen(request, timeout=120) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                event = json.loads(line.removeprefix(b"data: "))
                if "error" in event:
                    raise SystemExit(event["error"]["message"])
                yield event["choices"][0]["text"]


def read(name: str, url: str, in_the_middle: Callable[[], None]) -> str:
    """Read the response to its end and print its timing. Returns: its text."""
    pieces: list[str] = []
    longest, last = 0.0, 0.0
    for piece in stream(url):
        now = time.monotonic()
        longest, last = max(longest, now - last if pieces else 0.0), now
        pieces.append(piece)
        if len(pieces) == KILL_AFTER:
            in_the_middle()
    print(f"{name:<12} {TOKENS:6,} tokens, longest gap {longest * 1000:5,.0f} ms")
    return "".join(pieces)


def kill_busy_instance(url: str) -> None:
    """Send SIGKILL to the decode instance that has work; the reported load is updated four times a second."""
    for _ in range(20):
        with urllib.request.urlopen(f"{url}/cluster", timeout=30) as answer:
            pools: list[dict[str, Any]] = json.load(answer)["pools"]
        decode = next(pool["replicas"] for pool in pools if pool["name"] == "decode")
        busy = max(decode, key=lambda replica: replica["running"])
        if busy["running"]:
            break
        time.sleep(0.05)
    os.kill(busy["pid"], signal.SIGKILL)
    print(f"kill -9 {busy['pid']} ({busy['replica']}) after {KILL_AFTER} tokens")


def main() -> None:
    """Request the text twice; exit with code 1 if the texts differ."""
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    undisturbed = read("undisturbed", url, lambda: None)
    killed = read("killed", url, lambda: kill_busy_instance(url))
    print("the same text" if killed == undisturbed else "another text")
    raise SystemExit(killed != undisturbed)


if __name__ == "__main__":
    try:
        main()
    except urllib.error.URLError as error:
        raise SystemExit(f"{error.reason}: run `make serve`, or give the server's address as an argument") from None
