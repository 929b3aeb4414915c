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
    """Stores images by key. Failures are not errors to the caller: an image that cannot be stored is skipped."""

    def load(self, key: str) -> MappedImage | None:
        """The image, its checksum verified; None = not to be had now."""
        ...

    def store(self, key: str, nbytes: int, fill: Callable[[memoryview], None]) -> bool:
        """Store a new image, or wait for another process that is creating it.

        Args:
            nbytes: of the image.
            fill: writes the whole image into the given memory; not called if no write is needed.
        Returns: whether the image now exists.
        Raises: errors of `fill`; no image is stored then.
        """
        ...
