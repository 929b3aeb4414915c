"""How sequences leave an engine: over, given up or out of time.

While a step, a pull or a fetch still writes into a sequence's blocks it only closes; whoever hears of the end of that
lets it go for good with `finish`.
"""

from serving.engine.events import EngineEvent, HandoffClosed, HandoffEnd
from serving.engine.handoffs import HeldHandoffs
from serving.ids import SequenceId
from serving.policy.scheduler import Scheduler
from serving.policy.sequence import LiveSequence
from serving.policy.sequence_phase import PhaseEvent, SequencePhase
from serving.values.news import Lost, Tokens
from serving.values.sequence import FinishReason


class Departures:
    """Takes sequences out of one engine's queues; shares these, and the list of events, with the engine."""

    def __init__(
        self,
        scheduler: Scheduler,
        handoffs: HeldHandoffs,
        sequences: dict[SequenceId, LiveSequence],
        events: list[EngineEvent],
    ) -> None:
        self._scheduler = scheduler
        self._handoffs = handoffs
        self._sequences = sequences
        self._events = events

    def time_is_up(self, sequence: LiveSequence) -> None:
        """A deadline or a lease has passed; no step is in flight. Effects: as `drop`, and the gateway is told."""
        if sequence.phase is SequencePhase.HELD:
            self._handoffs.expired_total += 1
            # For a gateway that has not received the ticket yet.
            self._events.append(Lost(sequence.sequence_id, "its handoff expired"))
            self.end_handoff(sequence, HandoffEnd.EXPIRED)
            return
        position, reason = len(sequence.output), FinishReason.DEADLINE
        self._events.append(Tokens(sequence.sequence_id, position, finish_reason=reason))
        self.drop(sequence, HandoffEnd.EXPIRED)

    def drop(self, sequence: LiveSequence, end: HandoffEnd) -> None:
        """Take a sequence out of wherever it is.

        Effects: it is finished, or closes until what writes into its blocks reports.
        """
        phase, scheduler = sequence.phase, self._scheduler
        if phase is SequencePhase.HELD:
            self.end_handoff(sequence, end)
        elif phase in (SequencePhase.PULLING, SequencePhase.FETCHING):
            sequence.advance(PhaseEvent.CLOSE)
        elif phase in (SequencePhase.WAITING, SequencePhase.ADOPTING):
            scheduler.waiting.remove(sequence)
            self.finish(sequence)
        else:
            self.leave_batch(sequence)

    def end_handoff(self, sequence: LiveSequence, end: HandoffEnd) -> None:
        """The ticket of a held sequence is over. Effects: finishes it; the driver is told to withdraw its blocks."""
        ticket_id = self._handoffs.end(sequence)
        self._events.append(HandoffClosed(sequence.sequence_id, ticket_id, end))
        self.finish(sequence)

    def leave_batch(self, sequence: LiveSequence) -> None:
        """Take a sequence out of the batch. Effects: it is finished, or closes until the step that it is in ends."""
        self._scheduler.running.remove(sequence)
        if sequence.in_flight:
            sequence.advance(PhaseEvent.CLOSE)
        else:
            self.finish(sequence)

    def finish(self, sequence: LiveSequence) -> None:
        """The last act: blocks go back, the engine forgets the sequence."""
        sequence.advance(PhaseEvent.END)
        self._scheduler.blocks.free(sequence)
        del self._sequences[sequence.sequence_id]
