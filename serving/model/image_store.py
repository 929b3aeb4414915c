"""Port between the loader and the KV-cache pool, which keeps model images."""

from collections.abc import Callable
from typing import Protocol


class MappedImage(Protocol):
    """An image in this process's memory."""

    @property
    def data(self) -> memoryview:
        """Bytes of the image, read-only; valid while this view or a part of it is referenced."""
        ...

    def release(self) -> None:
        """Declare the image unused by this process, so that the store may evict it."""
        ...

    def distrust(self) -> None:
        """Report that the image's bytes are wrong. Implies `release`."""
        ...


class ImageStore(Protocol):
    """Stores images by key. Failures are not errors to the caller: an image that cannot be stored is skipped."""

    def load(self, key: str) -> MappedImage | None:
        """The image, with a verified checksum; None = currently unavailable."""
        ...

    def store(self, key: str, nbytes: int, fill: Callable[[memoryview], None]) -> bool:
        """Store a new image, or wait for another process that is creating it.

        Args:
            nbytes: size of the image.
            fill: writes the whole image into the given memory; not called if no write is needed.
        Returns: whether the image now exists.
        Raises: errors of `fill`; no image is stored in that case.
        """
        ...
