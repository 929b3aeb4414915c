"""Image stores without a pool, for the loader's half of the port: inside this process, and in files."""

import mmap
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path


@dataclass
class ShelfImage:
    """One image, read-only as a mapped one is."""

    data: memoryview
    released: int = 0
    distrusted: int = 0

    def release(self) -> None:
        """Counts."""
        self.released += 1

    def distrust(self) -> None:
        """Counts."""
        self.distrusted += 1


@dataclass
class ImageShelf:
    """Keeps images in anonymous memory.

    Args:
        full: nothing can be stored.
        forgets: what is stored is gone at once.
    """

    full: bool = False
    forgets: bool = False
    images: dict[str, ShelfImage] = field(default_factory=dict)
    stored: list[str] = field(default_factory=list)

    def load(self, key: str) -> ShelfImage | None:
        """What `store` kept."""
        return self.images.get(key)

    def store(self, key: str, nbytes: int, fill: Callable[[memoryview], None]) -> bool:
        """Fills new memory."""
        if self.full:
            return False
        memory = memoryview(mmap.mmap(-1, nbytes))
        fill(memory)
        self.stored.append(key)
        if not self.forgets:
            self.images[key] = ShelfImage(memory.toreadonly())
        return True

    @property
    def only(self) -> ShelfImage:
        """The one image."""
        (image,) = self.images.values()
        return image

    def spoil(self, change: Callable[[bytearray], None]) -> None:
        """Replace the one image by a changed copy."""
        ((key, image),) = self.images.items()
        changed = bytearray(image.data)
        change(changed)
        memory = mmap.mmap(-1, len(changed))
        memory[:] = bytes(changed)
        self.images[key] = ShelfImage(memoryview(memory).toreadonly())


@dataclass
class FileShelf:
    """Keeps images in files of a folder, mapped by each process that loads them, as the pool's are.

    Args:
        folder: where; of one process at a time while an image is made.
    """

    folder: Path

    def load(self, key: str) -> ShelfImage | None:
        """The image, mapped."""
        path = self._path(key)
        if not path.exists():
            return None
        with path.open("rb") as file:
            return ShelfImage(memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)))

    def store(self, key: str, nbytes: int, fill: Callable[[memoryview], None]) -> bool:
        """Fills a new file."""
        with self._path(key).open("w+b") as file:
            file.truncate(nbytes)
            fill(memoryview(mmap.mmap(file.fileno(), nbytes)))
        return True

    def _path(self, key: str) -> Path:
        return self.folder / f"{blake2b(key.encode(), digest_size=8).hexdigest()}.image"
