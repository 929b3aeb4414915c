"""A rank of a group in a process of its own, on a host of its own: `python -m tests.group.far_rank CASE`.

Reads commands and prints facts, each a line of JSON; values that are not plain are msgpack in base64.

    -> {"offer": ...}                                    <- {"order": ...}  -> {"followed": epoch}
    <- {"begin": epoch, "members": [...]}                <- {"run": seed}   -> {"answers": {...}, "gap_s": ...}
    -> {"lost": rank}                                    end of input ends it
"""

import base64
import json
import queue
import sys
import threading
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from serving.config.experts import ExpertsConfig
from serving.group.compute.rank_parts import RankParts
from serving.ids import NodeId, ReplicaId, SequenceId
from serving.instance.executors.native_grammar import route_for_steps
from serving.model.kv_cache import KvCache
from serving.model.loader import load_model, product_forms
from serving.sockets.secrets import ClusterSecrets
from serving.values.group import RegroupOrder
from serving.values.instances import InstancePlace, RankPlace
from serving.values.sequence import SamplingParams, SequenceSpec
from tests.group.rank_threads import BLOCK_TOKENS, BLOCKS, SETTINGS, drive, prompts
from tests.instance.native_grammars import matchers_of

STEP_S = 0.01
"""Pause before each step, so that a run lasts long enough to lose a host in it."""


class Case(msgspec.Struct, frozen=True):
    """Arguments of one process. `host`: its address. `silence_s`: as in `Carriers`."""

    folder: str
    rank: int
    ranks: int
    node: str
    host: str
    silence_s: float


def work(seed: int) -> list[SequenceSpec]:
    """Requests of one run."""
    sampling = SamplingParams(temperature=0.0, max_tokens=60)
    chosen = enumerate(prompts(4, Random(seed)))
    return [SequenceSpec(SequenceId(f"{seed}-{i}"), tuple(prompt), sampling) for i, prompt in chosen]


def packed(value: object) -> str:
    """A value as text."""
    return base64.b64encode(msgspec.msgpack.encode(value)).decode()


def say(**facts: Any) -> None:
    """Print facts."""
    print(json.dumps(facts), flush=True)


def main() -> None:
    """Run the rank."""
    case = msgspec.json.decode(sys.argv[1], type=Case)
    folder = Path(case.folder)
    model = load_model(folder, dtype="bfloat16", native=True)
    place = InstancePlace(
        ReplicaId(f"r{case.rank}"), "decode", NodeId(case.node), (), Path(f"/dev/shm/far-{case.rank}"), case.host, 1,
        RankPlace(case.rank, case.ranks, case.ranks, "decode#far"),
    )  # fmt: skip
    forms = partial(product_forms, folder, model.device, native=True)
    parts = RankParts(ExpertsConfig(across_nodes=True, deadline_s=20.0), place, model, folder, forms)
    cache = KvCache(model.config, BLOCKS, BLOCK_TOKENS, model.dtype, num_layers=len(model.config.layers))
    matchers = matchers_of(folder, route_for_steps())
    executor = parts.executor(cache, 1, SETTINGS.max_step_tokens, matchers)
    parts.listen(case.host, ClusterSecrets(("of both hosts",)), silence_s=case.silence_s)
    runs: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    joined = threading.Event()
    say(offer=packed(parts.offer("a layout")))
    threading.Thread(target=_listen, args=(parts, runs, joined), daemon=True).start()
    threading.Thread(target=_watch, args=(parts,), daemon=True).start()
    joined.wait()
    while True:
        executor.serve(0.02)
        if runs.empty():
            continue
        if (seed := runs.get()) is None:
            break
        times: list[float] = []

        def before(_: int, times: list[float] = times) -> None:
            time.sleep(STEP_S)
            times.append(time.monotonic())

        answers = drive(executor, work(seed), SETTINGS, between=before)
        gap_s = max(after - one for one, after in pairwise(times))
        say(answers={name: answer.tokens for name, answer in answers.items()}, gap_s=gap_s)
    parts.leave()


def _listen(parts: RankParts, runs: "queue.SimpleQueue[int | None]", joined: threading.Event) -> None:
    for line in sys.stdin:
        command = json.loads(line)
        if "order" in command:
            order = msgspec.msgpack.decode(base64.b64decode(command["order"]), type=RegroupOrder)
            parts.follow(order)
            joined.set()
            say(followed=order.epoch)
        elif "begin" in command:
            parts.begin(command["begin"], command["members"])
        else:
            runs.put(command["run"])
    runs.put(None)
    joined.set()


def _watch(parts: RankParts) -> None:
    """Report the loss of peers, as a shell finds it in a rank's report."""
    said: int | None = None
    while True:
        time.sleep(0.01)
        awaited = parts.awaited()
        rank = awaited[0] if awaited is not None and awaited[1] > 3600 else None
        if rank is not None and rank != said:
            say(lost=rank)
        said = rank


if __name__ == "__main__":
    main()
