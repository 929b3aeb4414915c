"""Input and output of a gateway's core. Events have the gateway's time; effects are carried out in order.

All are frozen values: a driver delivers them, a decision log stores them, a replay compares them.
"""

from collections.abc import Callable
from pathlib import Path
from traceback import extract_tb

from msgspec.structs import replace

from serving.gateway.core.gateway_admission import AdmissionLimits
from serving.gateway.core.route_decision import RouteDecision
from serving.gateway.core.settings import GatewaySettings
from serving.ids import BlockHash, NodeId, ReplicaId, SequenceId
from serving.values.instances import Status
from serving.values.jobs import Fail, GenerationJob, SequenceUpdate
from serving.values.news import News, Value
from serving.values.orders import Send


class Submit(Value, frozen=True, gc=False):
    """A request arrived.

    Args:
        number: of the job; numbers increase.
    """

    number: int
    job: GenerationJob


class StopChoice(Value, frozen=True, gc=False):
    """One choice finishes early: a stop string matched."""

    number: int
    index: int


class CancelJob(Value, frozen=True, gc=False):
    """The client left. Unknown numbers are ignored."""

    number: int


class EndAll(Value, frozen=True, gc=False):
    """The gateway shuts down: all waiting and running jobs fail, with an error for their clients."""

    reason: str


class InstanceUp(Value, frozen=True, gc=False):
    """A link to an instance is usable."""

    replica: ReplicaId
    pool: str
    node: NodeId
    kv_blocks: int


class InstanceStatus(Value, frozen=True, gc=False):
    """An instance reports its load."""

    replica: ReplicaId
    status: Status


class InstanceSays(Value, frozen=True, gc=False):
    """Events of sequences, all from one engine step."""

    replica: ReplicaId
    news: tuple[News, ...]


class InstanceDown(Value, frozen=True, gc=False):
    """The link is no longer usable, and the instance's state is lost.

    Args:
        still_since: last activity of an instance that was declared dead for its silence, or for a hanging engine [s];
            None = unknown; 0 = it exited in an orderly way.
    """

    replica: ReplicaId
    still_since: float | None = None


class Unsent(Value, frozen=True, gc=False):
    """The link was down before a submission was sent: the instance has not received it."""

    replica: ReplicaId
    sequence_id: SequenceId


class TooLarge(Value, frozen=True, gc=False):
    """A submission does not fit into a frame."""

    sequence_id: SequenceId
    reason: str


class Expect(Value, frozen=True, gc=False):
    """Whether an instance is expected, or would be if a job waited for it."""

    coming: bool


class Configure(Value, frozen=True, gc=False):
    """Configuration keys that a running gateway accepts; waiting jobs stay queued and are rechecked soon."""

    limits: AdmissionLimits
    max_attempts: int
    role_wait_s: float
    empty_role_s: float

    def upon(self, settings: GatewaySettings) -> GatewaySettings:
        """Settings with these keys instead of their own."""
        return replace(
            settings,
            limits=self.limits,
            max_attempts=self.max_attempts,
            role_wait_s=self.role_wait_s,
            empty_role_s=self.empty_role_s,
        )


class Look(Value, frozen=True, gc=False):
    """Time has passed; due at `Gateway.next_wake`."""


GatewayEvent = (
    Submit
    | StopChoice
    | CancelJob
    | EndAll
    | InstanceUp
    | InstanceStatus
    | InstanceSays
    | InstanceDown
    | Unsent
    | TooLarge
    | Expect
    | Configure
    | Look
)


class Rejected(Value, frozen=True, gc=False):
    """The job was refused before it was queued.

    Args:
        unavailable: for lack of an instance, not of capacity.
    """

    number: int
    reason: str
    retry_after_s: float
    unavailable: bool


class JobFailed(Value, frozen=True, gc=False):
    """Report a failed job to its client, after the updates that precede it.

    Args:
        retry_after_s: shortest Retry-After of a full instance; None = none sent one.
    """

    number: int
    failure: Fail
    retry_after_s: float | None = None


class JobOver(Value, frozen=True, gc=False):
    """A job has ended and holds no more state."""

    number: int


class Routed(Value, frozen=True, gc=False):
    """A routing decision, for logs; its command follows."""

    sequence_id: SequenceId
    decision: RouteDecision
    decode: bool


class Waits(Value, frozen=True, gc=False):
    """A sequence has started to wait for an instance."""

    sequence_id: SequenceId
    reason: str


class PrefetchKv(Value, frozen=True, gc=False):
    """Have the memory servers load these blocks of a waiting prompt from SSD. Nothing depends on it."""

    namespace: str
    hashes: tuple[BlockHash, ...]


class Broken(Value, frozen=True, gc=False):
    """An unexpected exception in one job, which failed only that job.

    Args:
        trace: for people: the exception and its location, without anything that differs between installations.
    """

    number: int
    trace: str

    @classmethod
    def at(cls, number: int, error: Exception) -> "Broken":
        """For a job whose work raised this exception."""
        frames = [f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in extract_tb(error.__traceback__)]
        return cls(number, f"{type(error).__name__}: {error} at {', '.join(frames)}")


GatewayEffect = Send | SequenceUpdate | Rejected | JobFailed | JobOver | Routed | Waits | PrefetchKv | Broken
"""If a submission cannot be sent, the driver reports `Unsent` or `TooLarge` to the core as soon as it has carried out
the other effects returned with it: the core assumes that all effects were carried out."""
GatewayOn = Callable[[GatewayEvent, float], list[GatewayEffect]]
"""`Gateway.on`, or a wrapper that records it."""
