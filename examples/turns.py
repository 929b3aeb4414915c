#!/usr/bin/env python3
"""A conversation of several turns, and the part of each prompt that need not be computed again.

Shows: reuse of KV blocks. Each prompt starts with all turns before it. `cached` tokens were not computed; of these, the
`pulled` ones were read from the KV-cache pool, in this case blocks that the decode instance had generated.

    make serve                              # in another terminal
    python examples/turns.py                # or: python examples/turns.py http://127.0.0.1:9000

Expect no cached tokens in the first turn (unless you run it twice) and most of the prompt in all others:

      17 prompt tokens,    0 cached,    0 pulled
     108 prompt tokens,   96 cached,   80 pulled
"""

import json
import sys
import urllib.error
import urllib.request
from typing import Any

QUESTIONS = (
    "Tell me a story about a little dog and a ball.",
    "What did the dog do then?",
    "Who was its friend?",
    "What did they find in the garden?",
    "How does the story end?",
)


def ask(url: str, messages: list[dict[str, str]]) -> dict[str, Any]:
    """Post a conversation. Returns: the whole response."""
    body = {"messages": messages, "max_tokens": 80, "seed": 7}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def main() -> None:
    """Run the conversation and print one line per turn."""
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
    messages: list[dict[str, str]] = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        answer = ask(url, messages)
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        prompt = answer["usage"]["prompt_tokens"]
        details = answer["usage"]["prompt_tokens_details"]
        cached, pulled = (
            details["cached_tokens"],
            details.get("pulled_tokens", 0),
        )  # without a KV-cache pool only the first turn
        print(f"{prompt:4} prompt tokens, {cached:4} cached, {pulled:4} pulled")


if __name__ == "__main__":
    try:
        main()
    except urllib.error.URLError as error:
        raise SystemExit(f"{error.reason}: run `make serve`, or give the server's address as an argument") from None
