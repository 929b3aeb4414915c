"""Rules for taking over the SSD folder that a memory server's predecessor left."""

from collections.abc import Sequence
from typing import NamedTuple

from serving.ids import BlockHash
from serving.kvpool.core.entry import Kind, Space
from serving.kvpool.core.memory_manager import MemoryManager


class KeptFile(NamedTuple):
    """A whole file of an SSD folder that outlived its server.

    Attributes:
        last_use: on the new server's clock [s].
    """

    space: Space
    hash: BlockHash
    kind: Kind
    nbytes: int
    checksum: int
    last_use: float


def restore_files(
    manager: MemoryManager, files: Sequence[KeptFile], now: float
) -> tuple[list[tuple[int, KeptFile]], list[KeptFile]]:
    """Restore the most recently used files that fit on the new server's SSD tier, the oldest of them first.

    The order of eviction is then the predecessor's. Bytes are not trusted yet; they are verified when they are read.

    Returns: restored files with their versions, and files without room, which the caller removes. A file that is in
        neither list is refused by the ledger, which orders its removal itself.
    """
    oldest_first = sorted(files, key=lambda file: file.last_use)
    room, fitting, rest = manager.settings.ssd_bytes, [], []
    for file in reversed(oldest_first):
        if file.nbytes <= room:
            room -= file.nbytes
            fitting.append(file)
        else:
            rest.append(file)
    restored = []
    for file in reversed(fitting):
        version = manager.restore(file.space, file.hash, file.kind, file.nbytes, file.checksum, file.last_use, now)
        if version is not None:
            restored.append((version, file))
    return restored, rest
