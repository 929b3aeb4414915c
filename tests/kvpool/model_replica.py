"""The part of a replica that handles weights, in a separate process: loads a model, and responds to requests.

    with replica(folder, view=pool.view()) as one:
        one.seconds, one.ask("logits"), one.ask("memory")

Run as a program it reads what to load as JSON, prints a line of JSON when the weights are ready and one per request,
and ends with its standard input.
"""

import contextlib
import gc
import hashlib
import json
import subprocess
import sys
import threading
import time
import timeit
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from serving.ids import NodeId
from serving.kvpool.live.model_cache import ModelCache
from serving.values.pool_view import PoolView

REPOSITORY = Path(__file__).resolve().parents[2]
START_S = 50.0
TOKENS = list(range(6, 40))


@dataclass(slots=True)
class Replica:
    """A running child.

    Args:
        seconds: duration of `load_model`.
        private_bytes: private memory that this took.
        read: tensors that were read from the checkpoint.
    """

    process: "subprocess.Popen[str]"
    seconds: float
    private_bytes: int
    read: int

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self.process.pid

    def ask(self, question: str) -> Any:
        """Send a request. `logits`: a digest of the logits of a prompt; `compute`: seconds of a forward pass, the best
        of five.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        return _answer(self.process)


def mapped_pss(pid: int, name: str) -> int:
    """Bytes of files whose path contains `name` that a process maps, each page divided by its number of mappings."""
    total, inside = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first = line.split(maxsplit=1)[0]
        if not first.endswith(":"):
            inside = name in line
        elif inside and first == "Pss:":
            total += int(line.split()[1]) << 10
    return total


@contextlib.contextmanager
def replica(folder: Path, view: PoolView | None = None, **settings: Any) -> Iterator[Replica]:
    """Load a model in a child; without a view from the disk alone.

    Args:
        settings: `dtype`, `version`, `node` (n0), `verify`, `native`.
    """
    values = {"folder": str(folder), "view": None if view is None else msgspec.to_builtins(view), **settings}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.kvpool.model_replica", json.dumps(values)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    watchdog = threading.Timer(START_S, process.kill)
    watchdog.start()
    try:
        yield Replica(process, **_answer(process))
    finally:
        watchdog.cancel()
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _answer(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the replica ended"
    return json.loads(line)


def _anonymous_bytes() -> int:
    text = Path("/proc/self/smaps_rollup").read_text()
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss_Anon:"))


def main() -> None:
    """Main function of the child."""
    import torch

    from serving.model.loader import load_model
    from tests.model.paged import PagedRunner

    torch.set_num_threads(1)
    values = json.loads(sys.argv[1])
    images = None
    if values["view"] is not None:
        view = msgspec.convert(values["view"], PoolView)
        node = NodeId(values.get("node", "n0"))
        images = ModelCache("replica", node, "secret", lambda: view, verify=values.get("verify", True))
    read: list[int] = []
    gc.collect()
    gc.freeze()  # the next collection would visit all objects of torch, during the timed work
    before = _anonymous_bytes()
    start = time.perf_counter()
    model = load_model(
        values["folder"],
        dtype=values.get("dtype", "auto"),
        images=images,
        version=values.get("version", ""),
        progress=lambda done, _total: read.append(done),
        native=values.get("native", False),
    )
    seconds = time.perf_counter() - start
    facts = {"seconds": seconds, "private_bytes": _anonymous_bytes() - before, "read": len(read)}
    print(json.dumps(facts), flush=True)

    def logits() -> torch.Tensor:
        return PagedRunner(model).run("s", TOKENS, [len(TOKENS)])

    for question in sys.stdin:
        if question.strip() == "logits":
            print(json.dumps(hashlib.blake2b(logits().numpy().tobytes(), digest_size=8).hexdigest()), flush=True)
        else:
            print(json.dumps(min(timeit.repeat(logits, number=1, repeat=5))), flush=True)


if __name__ == "__main__":
    main()
