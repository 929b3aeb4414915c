"""Port between the loader and the KV-cache pool, which keeps model images."""

from collections.abc import Callable
from typing import Protocol


class MappedImage(Protocol):
    """An image in this process's memory."""

    @property
    def data(self) -> memoryview:
        """Bytes of the image, read-only; valid as long as anybody holds this view or a part of it."""
        ...

    def release(self) -> None:
        """This process does not use it any more: the keeper may evict it."""
        ...

    def distrust(self) -> None:
        """Report that the image's bytes are wrong. Implies `release`."""
        ...


class ImageStore(Protocol):
    """Keeps images by key. Nothing here is ever an error to the caller: what cannot be done is simply not done."""

    def load(self, key: str) -> MappedImage | None:
        """The image, its checksum verified; None = not to be had now."""
        ...

    def store(self, key: str, nbytes: int, fill: Callable[[memoryview], None]) -> bool:
        """Keep a new image, or wait for another process that is just making it.

        Args:
            nbytes: of the image.
            fill: writes all of it into the memory that it is given; not called when nothing is to be written.
        Returns: whether the image is there now.
        Raises: what `fill` raises; nothing is kept then.
        """
        ...
