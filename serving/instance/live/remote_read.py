"""Reading another node's UB segment: a small actor on that node puts the bytes into Ray's object store.

One actor per source node, made by whoever reads from it first. Chunks bound what lies in the object store at a time.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hardware.ub.attachments import Attachments
from serving.cluster.lookup import ActorLookup
from serving.cluster.membership import NAMESPACE
from serving.errors import HandoffError, HandoffExpiredError, HandoffTimeoutError
from serving.ids import NodeId

CHUNK_BYTES = 8 << 20
CHUNK_DEADLINE_S = 10.0
Extents = Sequence[tuple[int, int]]


@ray.remote(num_cpus=0, max_restarts=0)
class SegmentReader:
    """Lives on the source node and maps its segments."""

    def __init__(self) -> None:
        self._segments = Attachments()  # a removed segment keeps its memory while it is mapped: dead ones are let go

    def read(self, path: str, extents: Extents, generation: int) -> npt.NDArray[np.uint8]:
        """The extents' bytes, one after the other; Ray moves the array through the object store."""
        segment = self._segments.get(path)
        return np.concatenate([np.frombuffer(segment.read(o, n, generation), dtype=np.uint8) for o, n in extents])


def read_remote(node: NodeId, path: str, extents: Extents, generation: int) -> Iterator[memoryview]:
    """Fetch extents of another node's segment, in order, at most `CHUNK_BYTES` of them at once (at least one).

    Raises: HandoffExpiredError when the segment or its region is gone, HandoffTimeoutError when nothing comes in time,
        HandoffError when the node is gone.
    """
    try:
        reader: Any = _lookup(node).wait(CHUNK_DEADLINE_S)
        for chunk in _chunks(extents):
            array = ray.get(reader.read.remote(path, chunk, generation), timeout=CHUNK_DEADLINE_S)
            view, at = memoryview(array), 0
            for _, nbytes in chunk:
                yield view[at : at + nbytes]
                at += nbytes
    except ray.exceptions.RayTaskError as error:
        raise HandoffExpiredError(f"node {node[:12]} could not read {path}: {error.cause}") from error
    except TimeoutError as error:
        raise HandoffTimeoutError(f"node {node[:12]} did not deliver within {CHUNK_DEADLINE_S} s") from error
    except (ray.exceptions.RayError, ValueError) as error:
        raise HandoffError(f"node {node[:12]} did not deliver: {error}") from error


@cache  # one per node that this process ever reads from
def _lookup(node: NodeId) -> ActorLookup:
    return ActorLookup(lambda: _reader(node))


def _reader(node: NodeId) -> Any:
    actor_class: Any = SegmentReader
    return actor_class.options(
        name=f"cloudmatrix-segment-reader-{node}",
        namespace=NAMESPACE,
        get_if_exists=True,
        lifetime="detached",
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    ).remote()


def _chunks(extents: Extents) -> Iterator[Extents]:
    chunk: list[tuple[int, int]] = []
    size = 0
    for extent in extents:
        if chunk and size + extent[1] > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(extent)
        size += extent[1]
    if chunk:
        yield chunk
