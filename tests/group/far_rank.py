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
from serving.group.compute.expert_rank import ExpertRank, ExpertWeights
from serving.group.compute.group_rank import GroupRank
from serving.group.compute.rank_parts import RankParts
from serving.ids import NodeId, ReplicaId, SequenceId
from serving.instance.executors.group_executor import NativeGroupExecutor
from serving.instance.executors.native_grammar import route_for_steps
from serving.model.kv_cache import KvCache
from serving.model.loader import load_model, product_forms
from serving.sockets.secrets import ClusterSecrets
from serving.values.group import RankRole, RegroupOrder
from serving.values.instances import InstancePlace, RankPlace
from serving.values.sequence import SamplingParams, SequenceSpec
from tests.group.rank_threads import BLOCK_TOKENS, BLOCKS, SETTINGS, drive, prompts
from tests.instance.native_grammars import matchers_of

MOST_RANKS = 4
CONFIG = ExpertsConfig(across_nodes=True, micro_batches="2", deadline_s=20.0)
STEP_S = 0.01
"""Pause before each step, so that a run lasts long enough to lose a host in it."""


class Case(msgspec.Struct, frozen=True):
    """Arguments of one process. `experts`: numbers of the expert ranks; none = all ranks have both roles. `host`: its
    address. `silence_s`: as in `Carriers`."""

    folder: str
    rank: int
    ranks: int
    experts: tuple[int, ...]
    node: str
    host: str
    silence_s: float

    @property
    def place(self) -> InstancePlace:
        """Place of the rank."""
        number, experts = self.rank, self.experts
        role = RankRole.BOTH if not experts else RankRole.EXPERTS if number in experts else RankRole.ATTENTION
        index = experts.index(number) if number in experts else None
        rank = RankPlace(number, self.ranks, MOST_RANKS, "decode#far", role, index, len(experts) or None)
        path = Path(f"/dev/shm/far-{number}")
        return InstancePlace(ReplicaId(f"r{number}"), "decode", NodeId(self.node), (), path, self.host, 1, rank)


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
    executor = None
    if case.rank in case.experts:
        parts: GroupRank = ExpertRank(CONFIG, case.place, ExpertWeights(Path(case.folder)))
    else:
        parts, executor = _with_attention(case)
    parts.listen(case.host, ClusterSecrets(("of both hosts",)), silence_s=case.silence_s)
    runs: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    joined = threading.Event()
    say(offer=packed(parts.offer("a layout")))
    threading.Thread(target=_listen, args=(parts, runs, joined), daemon=True).start()
    threading.Thread(target=_watch, args=(parts,), daemon=True).start()
    joined.wait()
    if isinstance(parts, ExpertRank):
        parts.start()
        runs.get()
        return parts.stop()
    assert executor is not None
    _compute(executor, runs)
    return parts.leave()


def _with_attention(case: Case) -> tuple[RankParts, NativeGroupExecutor]:
    folder = Path(case.folder)
    model = load_model(folder, dtype="bfloat16", native=True)
    forms = partial(product_forms, folder, model.device, native=True)
    parts = RankParts(CONFIG, case.place, model, folder, forms)
    cache = KvCache(model.config, BLOCKS, BLOCK_TOKENS, model.dtype, num_layers=len(model.config.layers))
    return parts, parts.executor(cache, 1, SETTINGS.max_step_tokens, matchers_of(folder, route_for_steps()))


def _compute(executor: NativeGroupExecutor, runs: "queue.SimpleQueue[int | None]") -> None:
    while True:
        executor.serve(0.02)
        if runs.empty():
            continue
        if (seed := runs.get()) is None:
            return
        times: list[float] = []

        def before(_: int, times: list[float] = times) -> None:
            time.sleep(STEP_S)
            times.append(time.monotonic())

        answers = drive(executor, work(seed), SETTINGS, between=before)
        gap_s = max(after - one for one, after in pairwise(times))
        say(answers={name: answer.tokens for name, answer in answers.items()}, gap_s=gap_s)


def _listen(parts: GroupRank, runs: "queue.SimpleQueue[int | None]", joined: threading.Event) -> None:
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


def _watch(parts: GroupRank) -> None:
    """Report the loss of peers, as a shell finds it in a rank's report."""
    said: int | None = None
    while True:
        time.sleep(0.01)
        rank = min(parts.unreachable, default=None)
        if rank is not None and rank != said:
            say(lost=rank)
        said = rank


if __name__ == "__main__":
    main()
