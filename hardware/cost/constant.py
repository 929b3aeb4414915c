"""A number of a device file with where it comes from."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["published", "derived", "assumed", "fitted"]
STATUSES: tuple[Status, ...] = ("published", "derived", "assumed", "fitted")


@dataclass(frozen=True, slots=True)
class Constant:
    """One number.

    Attributes:
        value: in the unit that its key names.
        status: `published` = measured or stated in a source; `derived` = arithmetic on published numbers;
            `assumed` = chosen, with the reason as the source; `fitted` = found by calibration.
        source: place in the source, reason for the choice, or rows it was fitted to.
    """

    value: float
    status: Status
    source: str
