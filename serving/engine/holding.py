"""How sequences come to be held: out of the batch, their blocks kept for whoever pulls them.

A prompt that is done at a prefill instance is held, and so is a stream that is to go on elsewhere.
"""

from collections.abc import Sized

from serving.engine.events import EngineEvent
from serving.engine.handing_on import hand_on_event
from serving.engine.handoffs import HeldHandoffs
from serving.engine.outcome import handoff_event
from serving.engine.timers import Timers
from serving.ids import BlockHash
from serving.policy.finish import Accepted
from serving.policy.scheduler import Scheduler
from serving.policy.sequence import LiveSequence
from serving.policy.sequence_phase import PhaseEvent
from serving.policy.step_plan import SequenceResult


class Holding:
    """Holds sequences of one engine; shares queues, tickets, timers and the list of events with it."""

    def __init__(
        self,
        scheduler: Scheduler,
        handoffs: HeldHandoffs,
        timers: Timers,
        sequences: Sized,
        events: list[EngineEvent],
    ) -> None:
        """
        Args:
            sequences: all that the engine has.
        """
        self._scheduler = scheduler
        self._handoffs = handoffs
        self._timers = timers
        self._events = events
        self._sequences = sequences

    def hold(self, sequence: LiveSequence, accepted: Accepted, outcome: SequenceResult, now: float) -> None:
        """Prefill is done: keep the blocks for whoever pulls them. Effects: a `HandoffReady`, with the token."""
        sequence.advance(PhaseEvent.PROMPT_HELD)
        ticket_id, hashes = self._keep(sequence, now)
        block_tokens = self._scheduler.blocks.block_tokens
        self._events.append(handoff_event(sequence, accepted, outcome, ticket_id, hashes, block_tokens))

    def hand_on(self, sequence: LiveSequence, now: float) -> None:
        """A stream is to go on elsewhere: keep the blocks likewise. Effects: a `HandoffReady`."""
        sequence.advance(PhaseEvent.HAND_ON)
        ticket_id, hashes = self._keep(sequence, now)
        block_tokens = self._scheduler.blocks.block_tokens
        self._events.append(hand_on_event(sequence, ticket_id, hashes, block_tokens))

    def _keep(self, sequence: LiveSequence, now: float) -> tuple[str, tuple[BlockHash, ...]]:
        """Take a sequence out of the batch and hold its blocks. Returns: its ticket, and hashes of its full blocks."""
        self._scheduler.running.remove(sequence)
        ticket_id = self._handoffs.hold(sequence, now)
        self._timers.set(self._handoffs.expires_at[ticket_id], sequence.sequence_id, len(self._sequences))
        return ticket_id, self._scheduler.blocks.full_hashes(sequence)
