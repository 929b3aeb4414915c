"""The live path's checkpoint and shared-memory folder."""

from tests.live.conftest import checkpoint, reference, shm

__all__ = ["checkpoint", "reference", "shm"]
