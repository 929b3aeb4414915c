"""Image stores without a pool, for the loader's half of the port: inside this process, and in files."""

import mmap
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path


@dataclass
class ShelfImage:
    """One read-only image, like a mapped one."""

    data: memoryview
    released: int = 0
    distrusted: int = 0

    def release(self) -> None:
        """Count the call."""
        self.released += 1

    def distrust(self) -> None:
        """Count the call."""
        self.distrusted += 1


@dataclass
class ImageShelf:
    """Stores images in anonymous memory.

    Args:
        full: no image can be stored.
        forgets: stored images are lost immediately.
    """

    full: bool = False
    forgets: bool = False
    images: dict[str, ShelfImage] = field(default_factory=dict)
    stored: list[str] = field(default_factory=list)

    def load(self, key: str) -> ShelfImage | None:
        """The stored image."""
        return self.images.get(key)

    def store(self, key: str, nbytes: int, fill: Callable[[memoryview], None]) -> bool:
        """Fill new memory."""
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
    """Stores images in files of a folder, mapped by each process that loads them, like the pool's.

    Args:
        folder: used by one process at a time while an image is made.
    """

    folder: Path

    def load(self, key: str) -> ShelfImage | None:
        """Map the image."""
        path = self._path(key)
        if not path.exists():
            return None
        with path.open("rb") as file:
            return ShelfImage(memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)))

    def store(self, key: str, nbytes: int, fill: Callable[[memoryview], None]) -> bool:
        """Fill a new file."""
        with self._path(key).open("w+b") as file:
            file.truncate(nbytes)
            fill(memoryview(mmap.mmap(file.fileno(), nbytes)))
        return True

    def _path(self, key: str) -> Path:
        return self.folder / f"{blake2b(key.encode(), digest_size=8).hexdigest()}.image"
