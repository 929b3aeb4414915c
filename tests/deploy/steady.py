"""Steady requests to one gateway until a file appears: half on new connections, half on kept ones.

    python -m tests.deploy.steady URL STOP_FILE

Prints as JSON the number of responses, the failures, and the number of distinct texts per prompt; exact means one each.
"""

import json
import sys
import threading
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PROMPTS = ("Once upon a time there was a", "The little dog saw a", "One day, a girl named", "In the big dark forest")
TOKENS = 24
PATIENCE_S = 120.0


class Steady:
    """Responses of all threads."""

    def __init__(self, url: str, stop: Path) -> None:
        self._where = urlsplit(url).netloc
        self._stop = stop
        self._lock = threading.Lock()
        self.answers = 0
        self.failures: list[str] = []
        self.texts: dict[str, set[str]] = {prompt: set() for prompt in PROMPTS}

    def run(self, prompt: str, *, keep: bool) -> None:
        """Send requests repeatedly."""
        connection = HTTPConnection(self._where, timeout=PATIENCE_S)
        while not self._stop.exists():
            try:
                text = self._ask(connection, prompt)
            except Exception as error:  # any error that a client would have seen
                connection.close()
                with self._lock:
                    self.failures.append(f"{type(error).__name__}: {error}")
                continue
            with self._lock:
                self.answers += 1
                self.texts[prompt].add(text)
            if not keep:
                connection.close()
        connection.close()

    def _ask(self, connection: HTTPConnection, prompt: str) -> str:
        body = {"model": "storyteller", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        said = response.read()
        if response.status != 200:
            raise ValueError(f"{response.status} {said[:200]!r}")
        answer: dict[str, Any] = json.loads(said)
        text: str = answer["choices"][0]["text"]
        return text


def main(url: str, stop: str) -> None:
    """Run until the file exists, then print."""
    steady = Steady(url, Path(stop))
    threads = [
        threading.Thread(target=steady.run, args=(prompt,), kwargs={"keep": place % 2 == 0})
        for place, prompt in enumerate(PROMPTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    texts = [len(found) for found in steady.texts.values()]
    print(json.dumps({"answers": steady.answers, "failures": steady.failures, "texts": texts}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
