"""Step executor that waits for the predicted time of real NPUs and returns placeholder tokens.

    plan ──► decoding sequences by die, prompt chunks            ──► cost model ──► duration
         └─► placeholder tokens, a stamp in each new KV block                        │
                                                           result ◄── wait until ◄───┘

KV is accounted, not computed: each block's few bytes hold a stamp of its sequence, so that moves can still be verified.
Prompt chunks and decodes of one step are priced as one mixed step (`hardware.cost.mixed_step`) on an instance whose
pool does both, but sequentially on a decode instance, where prompts are exceptions.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import xxhash

from hardware.cost.cost_model import CostModel
from hardware.cost.loads import DecodeLoad, PrefillLoad
from hardware.cost.mixed_step import MixedStep
from serving.errors import GrammarError
from serving.ids import SequenceId
from serving.instance.core.dp_balance import DpBalance
from serving.instance.core.settings import EngineRole
from serving.instance.executors.simulated_answers import GrammarAnswers, SimulatedAnswer, SimulatedAnswers
from serving.values.sequence import TokenLogprobs
from serving.values.step_plan import SampleOrder, SequenceResult, SequenceStep, StepPlan, StepResult

# Assignment of a simulated instance's sequences to decode dies, and the load of the fullest die.
#
# All dies step together, so the fullest one determines the step time. `DpBalance` makes the choice.


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
        self._slots: dict[SequenceId, DieSlot] = {}
        self._step = 0
        self._contexts = [0] * dies
        self._counts = [0] * dies
        self._present = 0

    def __len__(self) -> int:
        return len(self._slots)

    def begin(self) -> None:
        """Start a step, without sequences yet."""
        self._step += 1
        self._contexts = [0] * self._dies
        self._counts = [0] * self._dies
        self._present = 0

    def find(self, sequence_id: SequenceId) -> DieSlot | None:
        """The slot of a sequence that decoded before; None if it is new here."""
        return self._slots.get(sequence_id)

    def place(self, sequence_id: SequenceId, promised_tokens: int, answer: SimulatedAnswer) -> DieSlot:
        """Assign a new sequence to a die.

        Args:
            promised_tokens: final length of its context.
        Effects: creates its slot.
        """
        die, blocks = self._balance.choose().group, -(-promised_tokens // self._block_tokens)
        self._balance.add(die, blocks)
        slot = self._slots[sequence_id] = DieSlot(die, blocks, answer, 0)
        return slot

    def take_part(self, slot: DieSlot, tokens: int) -> None:
        """Add a sequence with a slot to this step.

        Args:
            tokens: length of its context.
        Effects: increases its die's load.
        """
        slot.step = self._step
        self._contexts[slot.die] += tokens
        self._counts[slot.die] += 1
        self._present += 1

    def end(self) -> DieLoad:
        """Complete the step.

        Returns: its load.
        Effects: removes the slots of sequences that were not in it.
        """
        if self._present < len(self._slots):
            gone = [name for name, slot in self._slots.items() if slot.step != self._step]
            for name in gone:
                slot = self._slots.pop(name)
                self._balance.remove(slot.die, slot.blocks)
        return DieLoad(max(self._counts), max(self._contexts), self._present)


# Step executor that waits for the predicted time of real NPUs and returns placeholder tokens.

STAMP_BYTES = 16
_STAMP = struct.Struct("<QQ")


class StepPacer(Protocol):
    """Lets simulated time pass; the only part of this module that waits."""

    def begin(self) -> None:
        """Start a step now, or at the end of the previous one."""
        ...

    def end(self, duration_s: float) -> None:
        """Wait until `duration_s` of simulated time has passed since the step's start."""
        ...


class StepTimes:
    """Step durations of one instance [s].

    Args:
        dies: number of the instance's dies.
        drafts: tokens that MTP drafts.
        prefill_dies: dies of a prefill instance. Decode dies do not share sequences, so a prompt chunk there takes as
            long as on a prefill instance with as many tokens on each of its dies; the same holds for groups of dies.
        perfect_balance: of experts, in prefill.
        slowdown: factor on the duration of step n; None = always 1.
    """

    def __init__(
        self,
        cost: CostModel,
        role: EngineRole,
        dies: int,
        drafts: int,
        *,
        prefill_dies: int,
        perfect_balance: bool = False,
        slowdown: Callable[[int], float] | None = None,
    ) -> None:
        self._cost = cost
        self._mixed = MixedStep(cost) if role.prefills and role.decodes else None
        self._dies = dies
        self._drafts = drafts
        self._perfect_balance = perfect_balance
        self._slowdown = slowdown
        tp = cost.decode.parallelism.attention_tp
        self._groups = cost.decode.parallelism.groups(dies) if role.decodes else dies
        self._on_decode_dies = not role.prefills
        self._chunk_dies = prefill_dies if self._on_decode_dies else dies
        self._chunk_copies = prefill_dies / tp if self._on_decode_dies else 1

    def step_s(self, step: int, load: DieLoad, tokens: int, attended_tokens: float, largest: int = 0) -> float:
        """Duration of one step.

        Args:
            load: the decoding sequences.
            tokens, attended_tokens, largest: of prompt chunks; see `hardware.cost.loads.PrefillLoad`.
        """
        seconds, cost = 0.0, self._cost
        mean = load.sequences / self._groups
        decode = DecodeLoad(load.requests, load.context_tokens, mean, self._dies, self._drafts)
        copies = self._chunk_copies
        chunk = PrefillLoad(
            tokens * copies,
            attended_tokens * copies,
            self._chunk_dies,
            1.0 if self._perfect_balance else None,
            largest=0 if self._on_decode_dies else largest,
        )
        if load.sequences and tokens and self._mixed is not None:
            seconds = self._mixed.seconds(decode, chunk)
        else:
            if load.sequences:
                seconds += cost.decode_step_s(decode)
            if tokens:
                seconds += cost.prefill_step_s(chunk)
        return seconds * (self._slowdown(step) if self._slowdown is not None else 1.0)


class BlockStamps:
    """Writes a stamp of the computing sequence into each KV block.

    Args:
        arena: all blocks, writable.
        block_bytes: real size of one block.
    """

    def __init__(self, arena: memoryview, block_bytes: int, block_tokens: int) -> None:
        self._arena = arena
        self._block_bytes = block_bytes
        self._block_tokens = block_tokens

    def stamp(self, step: SequenceStep, tokens: int) -> None:
        """Stamp the blocks that start within `tokens` tokens from the step's first position.

        Effects: overwrites their first `STAMP_BYTES`.
        """
        size, table = self._block_tokens, step.block_table
        first, end = -(-step.start // size), min(-(-(step.start + tokens) // size), len(table))
        if first >= end:
            return
        owner = xxhash.xxh3_64_intdigest(step.sequence_id.encode())
        for index in range(first, end):
            _STAMP.pack_into(self._arena, table[index] * self._block_bytes, owner, index)


class SimulatedExecutor:
    """A `StepExecutor` that computes nothing.

    Args:
        decodes: whether single tokens of sequences with output are decode steps; False on prefill instances.
        grammars: completions of sequences with a grammar; None = the grammar is not applied.
    """

    def __init__(
        self,
        times: StepTimes,
        answers: SimulatedAnswers,
        dies: DecodeDies,
        stamps: BlockStamps,
        pacer: StepPacer,
        *,
        decodes: bool,
        grammars: GrammarAnswers | None = None,
    ) -> None:
        self._times = times
        self._answers = answers
        self._dies = dies
        self._stamps = stamps
        self._pacer = pacer
        self._decodes = decodes
        self._grammars = grammars

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step.

        Raises: no errors.
        Effects: waits; stamps the blocks that the step starts.
        """
        self._pacer.begin()
        if self._grammars is not None:
            self._grammars.begin_step()
        dies = self._dies
        dies.begin()
        chunk_tokens, attended, largest = 0, 0.0, 0
        results: list[SequenceResult] = []
        for step in plan.sequences:
            fed, order = len(step.tokens), step.sample
            if self._decodes and fed == 1 and order is not None and order.output:
                results.append(self._decode(step, order))
                continue
            chunk_tokens += fed
            largest = max(largest, fed)
            attended += fed * (step.start + 0.5 * fed)
            results.append(self._chunk(step, fed))
        seconds = self._times.step_s(plan.step, dies.end(), chunk_tokens, attended, largest)
        self._pacer.end(seconds)
        return StepResult(plan.step, tuple(results), seconds)

    def _decode(self, step: SequenceStep, order: SampleOrder) -> SequenceResult:
        slot, context = self._dies.find(step.sequence_id), step.start + 1
        if slot is None:
            answer = self._answers.answer(order)
            slot = self._dies.place(step.sequence_id, len(order.prompt) + answer.limit, answer)
        self._dies.take_part(slot, context)
        count = self._answers.decoded(slot.answer, order)
        self._stamps.stamp(step, count)
        tokens, failure = self._tokens(step, slot.answer, order, count)
        logprobs = _logprobs(tokens, order.sampling.logprobs)
        return SequenceResult(step.sequence_id, tokens, logprobs, failure=failure)

    def _tokens(
        self, step: SequenceStep, answer: SimulatedAnswer, order: SampleOrder, count: int
    ) -> tuple[tuple[int, ...], str]:
        """The next tokens of a response, or none and the reason, if its grammar allows none."""
        if order.sampling.grammar is None or self._grammars is None:
            return self._answers.tokens(answer, order, count), ""
        try:
            return self._grammars.tokens(step.sequence_id, answer.seed, order, count), ""
        except GrammarError as error:
            return (), str(error)

    def _chunk(self, step: SequenceStep, fed: int) -> SequenceResult:
        self._stamps.stamp(step, fed)
        tokens: tuple[int, ...] = ()
        asked, failure = None, ""
        if (order := step.sample) is not None:
            tokens, failure = self._tokens(step, self._answers.answer(order), order, 1)
            asked = order.sampling.logprobs
        prompt: tuple[TokenLogprobs, ...] = ()
        if step.prompt_logprobs is not None:
            seen = [*step.tokens[1:], *(() if step.next_prompt_token is None else (step.next_prompt_token,))]
            prompt = _logprobs(tuple(seen), step.prompt_logprobs)
        return SequenceResult(step.sequence_id, tokens, _logprobs(tokens, asked), prompt, failure=failure)


def _logprobs(tokens: tuple[int, ...], asked: int | None) -> tuple[TokenLogprobs, ...]:
    """Log-probabilities of placeholders, if requested: each token has probability 1."""
    if asked is None:
        return ()
    return tuple(TokenLogprobs(token, 0.0, ((token, 0.0),) if asked else ()) for token in tokens)
