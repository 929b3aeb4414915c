"""Assignment of a simulated instance's sequences to decode dies, and the load of the fullest die.

All dies step together, so the fullest one determines the step time. `DpBalance` makes the choice.
"""

from dataclasses import dataclass

from serving.ids import SequenceId
from serving.instance.core.dp_balance import DpBalance
from serving.instance.executors.simulated_answers import SimulatedAnswer


@dataclass(slots=True)
class DieSlot:
    """A decoding sequence: its die, the KV blocks reserved there, its response, and its last step."""

    die: int
    blocks: int
    answer: SimulatedAnswer
    step: int


@dataclass(frozen=True, slots=True)
class DieLoad:
    """One decode step: the most sequences and the longest context on any die, and the number of all sequences."""

    requests: int
    context_tokens: int
    sequences: int


class DecodeDies:
    """Assignment of an instance's sequences to decode dies. A sequence that is not in a step has left.

    Args:
        dies: number of dies; of groups of dies if these share their sequences.
        max_sequences: of the instance; distributed evenly.
        block_tokens: tokens per KV block.
    """

    def __init__(self, dies: int, max_sequences: int, block_tokens: int) -> None:
        self._balance = DpBalance(dies, max(1, -(-max_sequences // dies)))
        self._block_tokens = block_tokens
        self._dies = dies
        self._seats: dict[SequenceId, DieSlot] = {}
        self._step = 0
        self._contexts = [0] * dies
        self._counts = [0] * dies
        self._present = 0

    def __len__(self) -> int:
        return len(self._seats)

    def begin(self) -> None:
        """Start a step, without sequences yet."""
        self._step += 1
        self._contexts = [0] * self._dies
        self._counts = [0] * self._dies
        self._present = 0

    def find(self, sequence_id: SequenceId) -> DieSlot | None:
        """The slot of a sequence that decoded before; None if it is new here."""
        return self._seats.get(sequence_id)

    def place(self, sequence_id: SequenceId, promised_tokens: int, answer: SimulatedAnswer) -> DieSlot:
        """Assign a new sequence to a die.

        Args:
            promised_tokens: final length of its context.
        Effects: creates its slot.
        """
        die, blocks = self._balance.choose().group, -(-promised_tokens // self._block_tokens)
        self._balance.add(die, blocks)
        seat = self._seats[sequence_id] = DieSlot(die, blocks, answer, 0)
        return seat

    def take_part(self, seat: DieSlot, tokens: int) -> None:
        """Add a sequence with a slot to this step.

        Args:
            tokens: length of its context.
        Effects: increases its die's load.
        """
        seat.step = self._step
        self._contexts[seat.die] += tokens
        self._counts[seat.die] += 1
        self._present += 1

    def end(self) -> DieLoad:
        """Complete the step.

        Returns: its load.
        Effects: removes the slots of sequences that were not in it.
        """
        if self._present < len(self._seats):
            gone = [name for name, seat in self._seats.items() if seat.step != self._step]
            for name in gone:
                seat = self._seats.pop(name)
                self._balance.remove(seat.die, seat.blocks)
        return DieLoad(max(self._counts), max(self._contexts), self._present)
