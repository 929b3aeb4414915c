"""Errors of the virtual hardware.

    HardwareError                 anything below; never raised itself
    ├── SpecError                 an invalid description of hardware (a negative size, an unknown name)
    ├── TopologyError             an identity outside the topology, or two ends without a common plane
    ├── ClockError                an operation that the clock does not support (go back, advance a wall clock)
    ├── HbmError                  a die's byte ledger
    │   ├── HbmExhaustedError     a reservation larger than what is free
    │   └── HbmReservationError   an unknown or doubly used reservation name
    ├── UbError                   a node's shared UB segment
    │   ├── UbMissingError        no segment at that path
    │   ├── UbExistsError         a segment is already there, or it has another size
    │   ├── UbCorruptError        the file is not a segment, or its table is inconsistent
    │   ├── UbFullError           no room: in the segment, in its region table, or in the directory that holds it
    │   ├── UbRangeError          a range outside the segment
    │   ├── UbStaleError          a region that was released or reclaimed before the access
    │   ├── UbBusyError           the segment's lock was not acquired in time
    │   └── UbClosedError         the segment was closed in this process
    ├── FabricError               an impossible transfer over links
    └── NpuAllocationError        this process holds no NPUs, or ones that the topology does not have

Every message contains the request, the actual state and the remedy. Broken internal invariants are `assert`s.
"""


class HardwareError(Exception):
    """Base of every error of this package."""


class SpecError(HardwareError):
    """An invalid description of hardware."""


class TopologyError(HardwareError):
    """An identity outside the topology, or ends without a common plane."""


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
    """No space for a region, for one more table entry, or for the segment itself."""


class UbRangeError(UbError):
    """An offset or a length reaches outside the segment."""


class UbStaleError(UbError):
    """The region was released, or reclaimed after its process died."""


class UbBusyError(UbError):
    """The segment's lock was not given in time."""


class UbClosedError(UbError):
    """The segment was closed in this process."""


class FabricError(HardwareError):
    """A link, a transfer or a question to the fabric that cannot be."""


class NpuAllocationError(HardwareError):
    """Ray assigned no NPUs to this process, or NPUs outside the topology."""
