"""Unified Bus shared memory of one node."""

from hardware.ub.copy import Hashed, checksum, copy_checked
from hardware.ub.file import remove_stale
from hardware.ub.region import UbRegion
from hardware.ub.segment import Attachments, UbSegment

__all__ = ["Attachments", "Hashed", "UbRegion", "UbSegment", "checksum", "copy_checked", "remove_stale"]
