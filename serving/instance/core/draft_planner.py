"""Plans draft tokens in steps: which are verified, how many to draft next, and their outcome.

    step n      ... → drafts g1 g2 at its end
    step n + 1  feeds last token, g1, g2; samples three times; keeps the matching ones, and one more; drafts again

Where a grammar allows only one continuation, the draft tokens are that continuation: free and always accepted, so a
step takes as many as fit, with or without a draft layer. They do not count in the draft layer's acceptance.

In place of a draft layer, draft tokens may be looked up in the sequence's own text (see `lookup`). They are chosen when
the step that verifies them is planned, so the executor has no part in it:

    step n + 1  looks up the last tokens: g1, g2; feeds last token, g1, g2; samples three times; keeps the matching ones

Draft tokens have the lowest priority: they take blocks only while all running sequences can still grow, use the token
budget that decodes leave, and never preempt a sequence. A preempted sequence loses its draft tokens.
"""

from collections.abc import Iterable
from typing import NamedTuple

from serving.instance.core.finish import Accepted
from serving.instance.core.lookup import DraftLookup, MatchCounts
from serving.instance.core.sequence import LiveSequence, SequencePhase
from serving.instance.core.sequence_blocks import SequenceBlocks
from serving.instance.core.speculation import Acceptance, Speculation, speculates, speculates_now
from serving.values.sequence import DraftUse
from serving.values.step_plan import SequenceResult, SequenceStep, StepPlan, StepResult


class DraftShare(NamedTuple):
    """A sequence's draft tokens in one step: the fields of `SequenceStep`."""

    drafts: tuple[int, ...]
    next_drafts: int | None


_NO_PART = DraftShare((), None)
_KEEP_UP = DraftShare((), 0)

_INDEXED_TOKENS = 2048
"""Known tokens that all sequences together index after one step, 0.2 us each: a long prompt delays no step."""
_AHEAD_TOKENS = 0.25
"""Tokens per step that planning ahead gains with small models; less with large ones, whose steps are longer."""
_UNKNOWN_SHARE = 0.25
"""Cost of a looked-up draft token, as a share of a step, until it is measured: short matches are not worth a trial."""


class DraftPlanner:
    """Draft tokens of one engine's sequences."""

    def __init__(
        self,
        speculation: Speculation | None,
        blocks: SequenceBlocks,
        max_len: int,
        most_forced: int = 0,
        most_found: int = 0,
    ) -> None:
        """
        Args:
            speculation: chooses the draft layer's draft tokens; None = none.
            max_len: longest prompt plus output; no token is fed or written beyond it.
            most_forced: maximum number of grammar-forced draft tokens per step.
            most_found: maximum number of draft tokens per step that are looked up; 0 = none. Requires `speculation` to
                be None.
        """
        self.speculation = speculation
        self._found = Speculation(most_found, _UNKNOWN_SHARE) if most_found else None
        self._matches = MatchCounts(common=True)
        self.verifications = 0
        """Number of verifications of a sequence's draft tokens."""
        self.drafted = 0
        """Number of verified draft tokens."""
        self.accepted = [0] * max(most_forced, most_found, speculation.most if speculation is not None else 0)
        """Draft tokens that were accepted and used, by position."""
        self._blocks = blocks
        self._max_len = max_len

    def begin(self, running: list[LiveSequence]) -> None:
        """Choose the draft tokens of the next step's decodes. Effects: counts the step if it decodes."""
        if self._found is not None:
            self._look_up(running, self._found)
        if self.speculation is None:
            return
        decodes, candidates = 0, []
        for sequence in running:
            if sequence.phase is SequencePhase.DECODING:
                decodes += 1
                if (acceptance := sequence.acceptance or self._meet(sequence)) is not None:
                    candidates.append(acceptance)
        if decodes:
            self.speculation.weigh(decodes, candidates)

    def may_draft(self, running: list[LiveSequence]) -> bool:
        """Whether the step after the running one may have draft tokens, not counting grammar-forced ones.

        Planned ahead, it cannot have any that are looked up: their gain must exceed that of planning ahead.
        """
        if self._found is None:
            return self.speculation is not None
        matches = []
        for sequence in running:
            if (lookup := sequence.lookup) is not None:
                if lookup.accepted > _AHEAD_TOKENS:
                    return True
                if lookup.gains:
                    matches.append(lookup)
        return bool(matches) and self._found.net_gain(len(running), matches) > _AHEAD_TOKENS

    def share(self, sequence: LiveSequence, *, samples: bool, spare_tokens: int, spare_blocks: int) -> DraftShare:
        """A sequence's draft tokens in the step being formed; its blocks already cover its own tokens.

        Unfinished chunks, and prompts of sequences without speculation, only keep the draft layer's cache complete,
        because other sequences may share their blocks. Decodes without speculation skip it.

        Args:
            samples: the step feeds all known tokens and samples.
            spare_tokens: draft tokens that still fit into the step.
            spare_blocks: free blocks that must stay free.
        Effects: may extend the block table; the sequence's draft tokens are consumed.
        """
        drafts, sequence.drafts = sequence.drafts, ()
        sequence.feeds_forced = sequence.drafts_forced
        if self.speculation is None:
            return self._share_without_layer(sequence, drafts if samples else (), spare_tokens, spare_blocks)
        acceptance = (sequence.acceptance or self._meet(sequence)) if samples else None
        if acceptance is None:
            never = sequence.phase is SequencePhase.DECODING and not speculates(sequence.spec.sampling)
            return _NO_PART if never else _KEEP_UP
        known = len(sequence.tokens)
        if drafts:
            drafts = self._fitting(sequence, drafts, spare_tokens)
        to_give, positions = sequence.spec.sampling.max_tokens - len(sequence.output), self._max_len - known
        wanted = self.speculation.guesses(acceptance)
        wanted = max(0, min(wanted, to_give - 2, positions - 1 - len(drafts)))
        if self._cover(sequence, known + len(drafts) + (wanted + 1 if wanted else 0), spare_blocks):
            return DraftShare(drafts, wanted)
        if drafts and self._cover(sequence, known + len(drafts), spare_blocks):
            return DraftShare(drafts, 0)
        return _KEEP_UP

    def book(
        self, sequence: LiveSequence, step: SequenceStep, outcome: SequenceResult, accepted: Accepted
    ) -> DraftUse | None:
        """Process the result of a step for one sequence.

        Returns: the use of its draft tokens; None if it had none.
        Effects: updates counts; sets the draft tokens of its next step, if it continues.
        """
        if accepted.finish_reason is None:
            sequence.drafts, sequence.drafts_forced = outcome.drafts, outcome.forced
        if not step.drafts:
            return None
        # A draft token after the token that ended the sequence was useless, accepted or not.
        right = min(len(outcome.tokens) - 1, len(accepted.tokens))
        self.verifications += 1
        self.drafted += len(step.drafts)
        for position in range(right):
            self.accepted[position] += 1
        if self.speculation is not None and not sequence.feeds_forced:
            assert sequence.acceptance is not None, "guesses were wanted, hence weighed"
            self.speculation.observe_drafts(sequence.acceptance, len(step.drafts), right)
        if right and sequence.lookup is not None and not sequence.feeds_forced:
            sequence.lookup.on_accepted(right)
        return DraftUse(len(step.drafts), right)

    def end_step(self, plan: StepPlan, result: StepResult, sequences: Iterable[LiveSequence]) -> None:
        """Record the cost of a step that only decoded, and index new tokens.

        Args:
            sequences: the plan's, with the step's tokens.
        """
        count = len(plan.sequences)
        speculation = self.speculation or self._found
        if speculation is not None and plan.num_tokens == count:
            verified = sum(len(step.drafts) for step in plan.sequences)
            # Looked-up draft tokens cost nothing to make: all of their cost is that of verifying them.
            made = verified if self._found is not None else sum(len(one.drafts) for one in result.results)
            speculation.observe_step(count, verified, made, result.elapsed_s)
        if self._found is not None:
            left = _INDEXED_TOKENS
            for sequence in sequences:
                if sequence.phase is SequencePhase.DECODING:
                    lookup = sequence.lookup
                    if lookup is not None or speculates(sequence.spec.sampling):
                        left -= self._index(sequence, lookup or self._new_lookup(sequence, self._found.most), left)

    def _new_lookup(self, sequence: LiveSequence, most: int) -> DraftLookup:
        longest = min(len(sequence.spec.prompt) + sequence.spec.sampling.max_tokens, self._max_len)
        sequence.lookup = DraftLookup(most, self._matches, longest)
        return sequence.lookup

    def _index(self, sequence: LiveSequence, lookup: DraftLookup, limit: int) -> int:
        """Index new tokens of a sequence. Returns: their number; of a prompt at most `limit`."""
        tokens = sequence.tokens
        known, end = lookup.known, len(tokens)
        if known >= len(sequence.spec.prompt) and end - known <= len(self.accepted) + 1:
            lookup.follow(tokens.span(known, end))
            return end - known
        count = max(0, min(limit, end - known))
        lookup.learn(tokens.span(known, known + count))
        if known + count == end:
            lookup.look()
        return count

    def _look_up(self, running: list[LiveSequence], found: Speculation) -> None:
        """Set the draft tokens of decodes that have a match, except for grammar-forced ones."""
        decodes, candidates = 0, []
        for sequence in running:
            if sequence.phase is SequencePhase.DECODING:
                decodes += 1
                if sequence.drafts and sequence.drafts_forced:
                    continue
                sequence.drafts, sequence.drafts_forced = (), False
                if (lookup := sequence.lookup) is not None and lookup.gains:
                    if speculates_now(sequence.spec.sampling, len(sequence.output)):
                        candidates.append((sequence, lookup))
        if decodes:
            found.weigh(decodes, [lookup for _, lookup in candidates])
        for sequence, lookup in candidates:
            sequence.drafts = lookup.draft(found.guesses(lookup))

    def _share_without_layer(
        self, sequence: LiveSequence, drafts: tuple[int, ...], spare_tokens: int, spare_blocks: int
    ) -> DraftShare:
        """A sequence's draft tokens without a draft layer, forced or looked up. Args, effects: as `share`."""
        fitting = self._fitting(sequence, drafts, spare_tokens) if drafts else ()
        if fitting and self._cover(sequence, len(sequence.tokens) + len(fitting), spare_blocks):
            return DraftShare(fitting, None)
        return _NO_PART

    def _fitting(self, sequence: LiveSequence, drafts: tuple[int, ...], spare_tokens: int) -> tuple[int, ...]:
        """Draft tokens that may be fed, leaving capacity for the token that follows if all are accepted."""
        to_give = sequence.spec.sampling.max_tokens - len(sequence.output)
        positions = self._max_len - len(sequence.tokens)
        return drafts[: max(0, min(to_give - 1, positions - 1, spare_tokens))]

    def _meet(self, sequence: LiveSequence) -> Acceptance | None:
        """The acceptance of a sequence that may speculate from now on, permanently; None if not yet."""
        if self.speculation is not None and speculates_now(sequence.spec.sampling, len(sequence.output)):
            sequence.acceptance = self.speculation.newcomer()
        return sequence.acceptance

    def _cover(self, sequence: LiveSequence, tokens: int, spare_blocks: int) -> bool:
        """Extend the block table to this many positions, unless too few blocks would be left."""
        blocks = self._blocks
        missing = blocks.lacks(sequence, tokens)
        return missing == 0 or (blocks.pool.num_free >= missing + spare_blocks and blocks.grow(sequence, tokens))
