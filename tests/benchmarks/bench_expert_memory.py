"""Memory of ranks whose expert slots are copied: resident bytes of experts, and private memory beside them.

All ranks of a group run at once, each in a process of its own, with the weights on one image in shared memory. A rank
loads the model, fills its slots from the image and lets go of the image's experts. Counted are the pages that it has
mapped then: of its slots, and of the experts' part of the image; and what it alone maps otherwise.

Goals: resident experts at most 1.05 times the share of a rank, 1 / ep + redundant / experts; 150 MiB private memory.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hardware.units import MIB
from serving.allocator import return_freed_memory
from serving.experts.core.deepseek import GlobalPlacement
from serving.experts.core.first_map import first_map, group_shape
from serving.model.native.library import load
from tests.benchmarks.conditions import (
    ROOT,
    STORYTELLER,
    Figure,
    conditions,
    make_parser,
    progress,
    report,
    show_conditions,
)
from tests.model.random_checkpoint import write_random_checkpoint

GOAL_SHARE = 1.05
GOAL_PRIVATE_MIB = 150
REDUNDANT = 1
_RANK = "--rank"


@contextmanager
def folder_of(model: Path | None) -> Iterator[list[Path]]:
    """The models to measure: the one asked for, or the storyteller and a random one of 32 experts."""
    if model is not None:
        yield [model.resolve()]
        return
    with tempfile.TemporaryDirectory() as temporary:
        random = write_random_checkpoint(
            Path(temporary) / "random-32-experts", kind="small", dtype="bfloat16", num_hidden_layers=4
        )
        yield [STORYTELLER, random]


def run_rank(rank: int, ranks: int, model: Path, shared: Path) -> None:
    """One rank: load, fill, wait until all have done so, measure. Effects: prints a line twice, reads one between."""
    from serving.model.config import read_architecture
    from serving.model.loader import load_model, product_forms
    from serving.model.slots.expert_slots import CopiedSlots, fill_all, make_slots
    from serving.model.slots.expert_sources import LoadedExperts, expert_source
    from tests.hardware.ub.resident import resident_bytes
    from tests.model.image_shelf import FileShelf

    loaded = load_model(model, native=True, images=FileShelf(shared), version="1", routed_experts=False)
    source = expert_source(loaded, model, lambda: product_forms(model, loaded.device, native=True))
    assert isinstance(source, LoadedExperts), "the image has them"
    experts = read_architecture(model).expert_count
    map_ = first_map(group_shape(experts, ranks, REDUNDANT), experts, source.layers, GlobalPlacement())
    slots = make_slots("copied", source, map_.slots[rank], shared / f"rank{rank}")
    assert isinstance(slots, CopiedSlots)
    fill_all(slots, [map_.placement(layer)[rank] for layer in range(source.layers)])
    return_freed_memory()
    print(flush=True)
    sys.stdin.readline()
    every = [source.expert(layer, expert).parts for layer in range(source.layers) for expert in range(experts)]
    image = [part for parts in every for part in parts if part.nbytes]
    records = [slots.record(number) for number in range(slots.layout.count)]
    found = {
        "resident": sum(map(resident_bytes, image)) + sum(map(resident_bytes, records)),
        "experts": sum(part.nbytes for part in image),
        "private": private_bytes(f"rank{rank}"),
    }
    print(json.dumps(found), flush=True)
    sys.stdin.readline()
    slots.close()


def private_bytes(without: str) -> int:
    """Bytes that only this process maps, files of that name left out."""
    total, counted = 0, True
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split(maxsplit=1)[0]
        if not first.endswith(":"):
            counted = not line.endswith(f"/{without}")
        elif counted and first in ("Private_Clean:", "Private_Dirty:"):
            total += int(line.split()[1]) << 10
    return total


def measure(model: Path, ranks: int) -> list[dict[str, int]]:
    """Figures that each rank of a group counts, all of them alive."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shared, ExitStack() as stack:
        started = []
        for rank in range(ranks):
            command = [sys.executable, "-m", "tests.benchmarks.bench_expert_memory", _RANK]
            process = subprocess.Popen(
                [*command, str(rank), str(ranks), str(model), shared],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            started.append(process)
            _answer(process)  # the first one makes the image
        found = []
        for process in started:
            found.append(json.loads(_ask(process)))
        for process in started:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
        return found


def _ask(process: "subprocess.Popen[str]") -> str:
    assert process.stdin is not None
    print(file=process.stdin, flush=True)
    return _answer(process)


def _answer(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        sys.exit("a rank ended before it had measured")
    return line


def figures_of(model: Path, ranks: int, experts: int) -> list[Figure]:
    """Both figures of one group, a value for each rank."""
    progress(f"{model.name}, EP-{ranks}")
    found = measure(model, ranks)
    share = 1 / ranks + REDUNDANT / experts
    resident = tuple(one["resident"] / one["experts"] / share for one in found)
    private = tuple(one["private"] / MIB for one in found)
    return [
        Figure(f"{model.name} EP-{ranks}: resident experts ÷ a rank's share", "", resident, GOAL_SHARE),
        Figure(f"{model.name} EP-{ranks}: private memory beside them", "MiB", private, GOAL_PRIVATE_MIB),
    ]


def main() -> None:
    """Run and print."""
    if sys.argv[1:2] == [_RANK]:
        rank, ranks, folder, shared = sys.argv[2:]
        run_rank(int(rank), int(ranks), Path(folder), Path(shared))
        return
    parser: argparse.ArgumentParser = make_parser("bench_expert_memory", __doc__, repeats=1)
    args = parser.parse_args()
    if load() is None:
        parser.error("there is no native library here")
    from serving.model.config import read_architecture

    figures: list[Figure] = []
    with folder_of(args.model) as models:
        found: dict[str, Any] = conditions(None, models=[model.name for model in models], redundant=REDUNDANT)
        show_conditions(found)
        for model in models:
            experts = read_architecture(model).expert_count
            for size in (2, 4):
                figures += figures_of(model, size, experts)
    report("bench_expert_memory", found | {"page_bytes": os.sysconf("SC_PAGE_SIZE")}, figures)


if __name__ == "__main__":
    main()
