"""Errors of the virtual hardware.

    HardwareError                 anything below; never raised itself
    ├── SpecError                 a description of hardware that cannot be (a negative size, an unknown name)
    ├── TopologyError             an identity outside the topology, or two ends that no plane joins
    ├── ClockError                a clock asked to do what it cannot (go back, advance a wall clock)
    ├── HbmError                  a die's byte ledger
    │   ├── HbmExhaustedError     a reservation larger than what is free
    │   └── HbmReservationError   an unknown or doubly used reservation name
    ├── UbError                   a node's shared UB segment
    │   ├── UbMissingError        no segment at that path
    │   ├── UbExistsError         a segment is already there, or it has another size
    │   ├── UbCorruptError        the file is no segment, or its table contradicts itself
    │   ├── UbFullError           no room: in the segment, in its region table, or in the directory that holds it
    │   ├── UbRangeError          a range outside the segment
    │   ├── UbStaleError          a region that was released or reclaimed meanwhile
    │   ├── UbBusyError           the segment's lock was not given in time
    │   ├── UbChannelError        a transfer between two ranks that did not come about; `ending` says why
    │   └── UbClosedError         the segment was closed in this process
    ├── FabricError               a transfer over links that cannot be
    └── NpuAllocationError        this process holds no NPUs, or ones that the topology does not have

Every message says what was asked, what is there, and what to do. A broken invariant of our own is an `assert`.
"""


class HardwareError(Exception):
    """Base of every error of this package."""


class SpecError(HardwareError):
    """A description of hardware that cannot be."""


class TopologyError(HardwareError):
    """An identity outside the topology, or ends that no plane joins."""


class ClockError(HardwareError):
    """An operation that the clock does not support."""


class HbmError(HardwareError):
    """Base of the errors of a die's byte ledger."""


class HbmExhaustedError(HbmError):
    """A reservation exceeded the free bytes."""


class HbmReservationError(HbmError):
    """A reservation name is unknown, already used, or its size is impossible."""


class UbError(HardwareError):
    """Base of the errors of a UB segment."""


class UbMissingError(UbError):
    """No segment is at the path."""


class UbExistsError(UbError):
    """A segment is already there, or it is there with another size."""


class UbCorruptError(UbError):
    """The file is not a segment that this code can use, or its region table contradicts itself."""


class UbFullError(UbError):
    """No room for a region, for one more table entry, or for the segment itself."""


class UbRangeError(UbError):
    """An offset or a length reaches outside the segment."""


class UbStaleError(UbError):
    """The region was released, or reclaimed after its process died."""


class UbBusyError(UbError):
    """The segment's lock was not given in time."""


class UbChannelError(UbError):
    """A transfer did not come about.

    Args:
        ending: `late`, `epoch changed` or `mismatch`.
    """

    def __init__(self, ending: str, message: str) -> None:
        super().__init__(f"{ending}: {message}")
        self.ending = ending


class UbClosedError(UbError):
    """The segment was closed in this process."""


class FabricError(HardwareError):
    """A link, a transfer or a question to the fabric that cannot be."""


class NpuAllocationError(HardwareError):
    """Ray assigned no NPUs to this process, or NPUs outside the topology."""
