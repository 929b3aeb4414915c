"""Why ranks of a group count as lost."""

from enum import Enum


class LossKind(Enum):
    """Why a rank counts as lost."""

    DEAD = "dead"
    SILENT = "silent"
    UNBUILT = "unbuilt"
    BROKEN = "broken"
    STALLED = "stalled"
    LATE = "late"
