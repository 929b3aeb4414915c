"""Orders of a gateway to an instance, about one sequence or one ticket."""

from serving.ids import ReplicaId, SequenceId
from serving.values.news import Value
from serving.values.sequence import HandoffTicket, SequenceSpec


class Add(Value, frozen=True, gc=False):
    """Compute this sequence's prompt here (and, outside the prefill role, go on decoding)."""

    spec: SequenceSpec


class Adopt(Value, frozen=True, gc=False):
    """Pull the KV of `ticket`, then decode. Sent to its source: decode it there, whatever the role."""

    spec: SequenceSpec
    ticket: HandoffTicket


class Cancel(Value, frozen=True, gc=False):
    """Forget this sequence, whatever its state. Unknown ids are ignored."""

    sequence_id: SequenceId


class Release(Value, frozen=True, gc=False):
    """The blocks of a ticket were pulled (or never will be): free them."""

    ticket_id: str
    distrust: bool = False
    """They did not arrive as they were registered: reuse them for nobody."""


Submission = Add | Adopt
Order = Add | Adopt | Cancel | Release


class Send(Value, frozen=True, gc=False):
    """Give an order to an instance."""

    replica: ReplicaId
    order: Order
