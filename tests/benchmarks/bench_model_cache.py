"""Model cache: a further replica's weights from the KV-cache pool, against reading the checkpoint; and their memory.

Every load is in a fresh process, after its imports; the checkpoint is in the page cache. From the pool a load is:
finding the image, holding it, mapping it, hashing all of it, and putting the model's parts together. Pairs run
alternately. Memory: the share of all processes (PSS), the memory server included, beyond what it had before.

Goals: 0.2 of the time; 1.1 times the memory of one replica for two.
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serving.model.native.library import load
from serving.model.size import weight_bytes
from tests.benchmarks.conditions import Figure, conditions, make_parser, progress, report, show_conditions
from tests.kvpool.model_replica import Replica, mapped_pss, replica
from tests.kvpool.pool_cluster import PoolCluster
from tests.model.random_checkpoint import write_random_checkpoint

Settings = dict[str, Any]
"""Of a replica; see `replica`."""
MIB = 1 << 20
GOAL_TIME = 0.2
GOAL_MEMORY = 1.1
HUGE_PAGES_S = 6.0
"""After an image was stored its pages are gathered into huge ones in the background; loads before that are slower."""


@contextlib.contextmanager
def the_checkpoint(folder: Path | None, dtype: str) -> Iterator[Path]:
    """The folder asked for, or a random one of 370 million parameters.

    Effects: may write a temporary folder.
    """
    if folder is not None:
        yield folder.resolve()
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield write_random_checkpoint(Path(temporary) / "small", kind="small", dtype="bfloat16")


def shared_pss(pool: PoolCluster, replicas: list[Replica]) -> int:
    """Bytes of the segment, each page divided by how many map it, of all processes together, and replicas' own."""
    pids = [pool.process(0).pid, *(one.pid for one in replicas)]
    return sum(mapped_pss(pid, str(pool.segments)) for pid in pids) + sum(one.private_bytes for one in replicas)


def memory(pool: PoolCluster, folder: Path, how: Settings, empty: int, image: int) -> tuple[float, float]:
    """Bytes of the weights of one replica and of two: the image, and what all processes have beyond the empty pool."""
    view = pool.view()
    with replica(folder, view, **how) as one:
        first = shared_pss(pool, [one]) - empty + image
        with replica(folder, view, **how) as two:
            both = shared_pss(pool, [one, two]) - empty + image
    return float(first), float(both)


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_model_cache", __doc__, repeats=7)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of computing")
    parser.add_argument("--native", action="store_true", help="products as the native library's panels")
    args = parser.parse_args()
    how: Settings = {"dtype": args.dtype, "native": args.native}
    if args.native and load() is None:
        parser.error("there is no native library here")
    import torch

    with the_checkpoint(args.model, args.dtype) as folder:
        found = conditions(folder, dtype=args.dtype, threads=1, native=args.native)
        show_conditions(found)
        image = weight_bytes(folder, getattr(torch, args.dtype).itemsize)
        with PoolCluster(capacity_bytes=int(1.2 * image) + 64 * MIB, write_lease_s=60.0) as pool:
            figures = measure(pool, folder, how, args.repeats, image)
    report("bench_model_cache", found, figures)


def measure(pool: PoolCluster, folder: Path, how: Settings, repeats: int, image: int) -> list[Figure]:
    """All figures; the first replica to load stores the image."""
    empty = mapped_pss(pool.process(0).pid, str(pool.segments))
    view = pool.view()
    with replica(folder, **how):
        pass  # the checkpoint is in the page cache from here on
    disk: list[Replica] = []
    pooled: list[Replica] = []
    compute: list[tuple[float, float]] = []
    with replica(folder, view, **how) as maker:
        progress(f"made: {maker.seconds:.3f} s")
        time.sleep(HUGE_PAGES_S)
        for repeat in range(repeats):
            with replica(folder, **how) as one:
                fresh = float(one.ask("compute"))
            with replica(folder, view, **how) as two:
                compute.append((fresh, float(two.ask("compute"))))
            assert two.read == 0, "the pool did not give the image"
            disk.append(one)
            pooled.append(two)
            progress(f"pair {repeat + 1}: disk {one.seconds:.3f} s, pool {two.seconds:.3f} s")
    first, both = memory(pool, folder, how, empty, image)
    ratios = tuple(b.seconds / a.seconds for a, b in zip(disk, pooled, strict=True))
    return [
        Figure("weights ready, from disk", "s", tuple(one.seconds for one in disk)),
        Figure("weights ready, from the pool", "s", tuple(one.seconds for one in pooled)),
        Figure("pool / disk", "", ratios, goal=GOAL_TIME),
        Figure("first replica: from disk into the pool", "s", (maker.seconds,)),
        Figure("a forward pass, pool / disk", "", tuple(b / a for a, b in compute)),
        Figure("what the first replica keeps for itself", "MiB", (maker.private_bytes / MIB,)),
        Figure("memory of one replica, from disk", "MiB", tuple(one.private_bytes / MIB for one in disk)),
        Figure("memory of one replica, from the pool", "MiB", (first / MIB,)),
        Figure("memory of two replicas, from the pool", "MiB", (both / MIB,)),
        Figure("two replicas / one", "", (both / first,), goal=GOAL_MEMORY),
    ]


if __name__ == "__main__":
    main()
