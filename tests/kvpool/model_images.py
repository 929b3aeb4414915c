"""Images of models: their content, their creation and loading."""

from collections.abc import Callable

from serving.kvpool.live.model_cache import MappedModel, ModelCache

MIB = 1 << 20
SIZE = 5 * MIB + 700


def content(seed: int, nbytes: int = SIZE) -> bytes:
    """Bytes that differ for each seed."""
    return bytes((seed + i) % 251 for i in range(1024)) * (nbytes // 1024) + bytes(nbytes % 1024)


def filling(seed: int) -> Callable[[memoryview], None]:
    """Fills an image with `content`."""

    def fill(memory: memoryview) -> None:
        memory[:] = content(seed, memory.nbytes)

    return fill


def loaded(cache: ModelCache, key: str) -> MappedModel:
    """An image that must exist."""
    image = cache.load(key)
    assert image is not None
    return image
