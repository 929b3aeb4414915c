"""Commands of a gateway to an instance, about one sequence or one ticket."""

from serving.ids import ReplicaId, SequenceId
from serving.values.news import Value
from serving.values.sequence import HandoffTicket, SequenceSpec


class Add(Value, frozen=True, gc=False):
    """Compute this sequence's prompt (and, outside the prefill role, continue decoding)."""

    spec: SequenceSpec


class Adopt(Value, frozen=True, gc=False):
    """Pull the KV of `ticket`, then decode. Sent to its source: decode there, in any role."""

    spec: SequenceSpec
    ticket: HandoffTicket


class Cancel(Value, frozen=True, gc=False):
    """Drop this sequence, in any state. Unknown ids are ignored."""

    sequence_id: SequenceId


class Release(Value, frozen=True, gc=False):
    """Free the blocks of a ticket: they were pulled, or never will be."""

    ticket_id: str
    distrust: bool = False
    """The contents did not match their checksums when pulled: never reuse the blocks."""


Submission = Add | Adopt
Order = Add | Adopt | Cancel | Release


class Send(Value, frozen=True, gc=False):
    """Send a command to an instance."""

    replica: ReplicaId
    order: Order
