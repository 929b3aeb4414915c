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
        status: `published` = somebody measured or states it; `derived` = arithmetic on published numbers;
            `assumed` = chosen, with the reason as the source; `fitted` = found by calibration.
        source: where it stands, why it was chosen, or what it was fitted to.
    """

    value: float
    status: Status
    source: str
