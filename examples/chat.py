#!/usr/bin/env python3
"""A streamed chat, with only Python's standard library.

Shows: the OpenAI-compatible endpoint, streaming, and the figures that the server sends with the text. Any OpenAI
client does the same; this file shows the data on the wire.

    make serve                              # in another terminal
    python examples/chat.py                 # or: python examples/chat.py http://127.0.0.1:9000

Expect a short story that appears word by word, then one line of figures:

    [17 prompt + 120 output tokens; first token after 21 ms, then 8 ms each; ended by: length]
"""

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

QUESTION = "Tell me a story about a little dog and a ball."


def stream(url: str, body: dict[str, object]) -> Iterator[dict[str, Any]]:
    """Post a request and yield each event of the response as it arrives."""
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        for line in answer:
            data = line.decode().strip().removeprefix("data: ")
            if data and data != "[DONE]":
                yield json.loads(data)


def main() -> None:
    """Send one question and print the response."""
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 120,
        "temperature": 0.7,
        "seed": 7,  # the same seed gives the same story
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began, first_s, reason = time.monotonic(), 0.0, ""
    usage: dict[str, int] = {}
    for event in stream(url, body):
        for choice in event["choices"]:
            first_s = first_s or time.monotonic() - began
            reason = choice["finish_reason"] or reason
            print(choice["delta"].get("content") or "", end="", flush=True)
        usage = event.get("usage") or usage
    rest_s = time.monotonic() - began - first_s
    prompt, output = usage["prompt_tokens"], usage["completion_tokens"]
    print(
        f"\n[{prompt} prompt + {output} output tokens; first token after {first_s * 1e3:.0f} ms, "
        f"then {rest_s * 1e3 / max(output - 1, 1):.0f} ms each; ended by: {reason}]"
    )


if __name__ == "__main__":
    try:
        main()
    except urllib.error.URLError as error:
        raise SystemExit(f"{error.reason}: run `make serve`, or give the server's address as an argument") from None
