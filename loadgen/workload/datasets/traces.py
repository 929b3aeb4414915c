"""A trace of any format as a workload: its requests at its times, with their exact bodies or with words of our own.

If a trace has prefix ids, prompts are rebuilt from the ids of their blocks. Scaled to a smaller model, lengths
then shrink together with the block (see `trace.scaling`): with a scale of 1/32 a block of 512 tokens has 16, which is
also the block of most servers' prefix caches. Without prefix ids, each prompt has words of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from loadgen import json_text
from loadgen.errors import NOT_JSON, TraceFormatError, UsageError
from loadgen.plan import Conversation, Prompt, Turn, if_changed
from loadgen.trace import RecordedTrace, Trace, TraceRecord, in_sessions
from loadgen.trace.draws import scaled_block, scaled_prompts
from loadgen.workload.datasets.fit import Fit
from loadgen.workload.ports import WordSource
from loadgen.workload.source import draw_seed


@dataclass(frozen=True)
class TraceWorkload:
    """Workload of a trace. Finite; `arrival_s` is the trace's own time.

    Does not use the random stream for blocks that have an id: their text is the same in every run and every round. A
    server that has processed the trace before therefore has all of it in its cache; salt the words to prevent that. A
    later turn is sent its pause after the previous response, with its own whole prompt, independent of that response.

    Attributes:
        words: writes prompts for requests without a body; None = such requests are an error.
        fit: scales and clips the lengths of these; its scale is rounded so that a block has a whole number of tokens.
        model: put into each recorded body in place of its name, so that a trace can be replayed against another server;
            None = the exact bytes.
    """

    trace: Trace
    words: WordSource | None = None
    fit: Fit = field(default_factory=Fit)
    model: str | None = None

    def __post_init__(self) -> None:
        """Raises: UsageError if a block would have less than one token."""
        if self.block_tokens < 1:
            raise UsageError(
                f"--length-scale {self.fit.length_scale:g} leaves no tokens of the trace's blocks of "
                f"{self.trace.block_tokens} tokens"
            )

    @property
    def block_tokens(self) -> int:
        """Tokens of a block after scaling; 1 if the trace has none."""
        if self.trace.block_tokens is None:
            return 1
        return scaled_block(self.trace.block_tokens, self.fit.length_scale)

    def conversations(self, rng: np.random.Generator) -> Iterator[Conversation]:
        """See `Workload`.

        Raises: TraceFormatError naming the line that is no request, or if the file cannot be read; UsageError if a
            request has no body and there are no words for it.
        """
        for requests in in_sessions(self.trace):
            self.fit.tally.taken += 1
            self.fit.tally.notes.update(self.trace.notes)
            turns = [self._replayed(one) if one.body is not None else self._written(one, rng) for one in requests]
            yield Conversation(turns=turns, tenant=requests[0].tenant, arrival_s=requests[0].arrival_s, history=False)
        self.fit.tally.notes.update(self.trace.notes)

    def _replayed(self, request: TraceRecord) -> Turn:
        """A request with its recorded body.

        Raises: TraceFormatError.
        """
        # Computed ids are computed again when the replay is recorded: the bodies are the same, so they are, too.
        computed = isinstance(self.trace, RecordedTrace) and self.trace.header.hash_ids == "computed"
        ids = [] if computed else request.hash_ids
        return Turn(
            prompt="",
            output_tokens=max(1, request.output_tokens),
            input_tokens=None if request.input_estimated else request.input_tokens,
            think_s=request.think_s,
            waits_for=list(request.waits_for),
            hash_ids=ids,
            block_tokens=(self.trace.block_tokens or 0) if ids else 0,
            body=self._body(request.body or ""),
        )

    def _body(self, recorded: str) -> bytes:
        """The body to send.

        Raises: TraceFormatError if the model's name is to be replaced in what is no JSON object.
        """
        if self.model is None:
            return recorded.encode()
        try:
            fields = json_text.decode(recorded, dict[str, msgspec.Raw])
        except NOT_JSON as error:
            raise TraceFormatError(f"{self.trace.path}: a body is no JSON object ({error})") from None
        fields["model"] = msgspec.Raw(msgspec.json.encode(self.model))
        return msgspec.json.encode(fields)

    def _written(self, request: TraceRecord, rng: np.random.Generator) -> Turn:
        """A request, scaled, clipped and written. Effects: advances `rng` if not all of it is named by ids.

        Raises: UsageError without words to make it of.
        """
        if self.words is None:
            raise UsageError(f"{self.trace.path} has requests without a body; their prompts need a tokenizer")
        block, ids = self.block_tokens, request.hash_ids
        asked = self._scaled_input(request.input_tokens)
        scaled = max(asked, self.words.overhead_tokens + 1)
        input_tokens, output_tokens = self.fit.clipped(scaled, self.fit.scaled(request.output_tokens), block)
        if input_tokens < scaled:
            # An id may only be claimed for a complete block; the trace's text after it is dropped.
            kept = ids[: input_tokens // block]
            rest_seed = ids[0] if ids else draw_seed(rng)
        else:
            kept = ids[: -(-input_tokens // block)]
            rest_seed = 0 if len(ids) * block >= input_tokens else draw_seed(rng)
        return Turn(
            prompt=BlockPrompts(self.words, block).prompt(kept, input_tokens, rest_seed),
            output_tokens=output_tokens,
            input_tokens=input_tokens if self.words.exact and not request.input_estimated else None,
            asked_input_tokens=if_changed(asked, input_tokens),
            asked_output_tokens=if_changed(self.fit.asked(request.output_tokens), output_tokens),
            think_s=request.think_s,
            waits_for=list(request.waits_for),
            hash_ids=kept,
            block_tokens=block if kept else 0,
        )

    def _scaled_input(self, tokens: int) -> int:
        """Whole blocks stay whole; the rest stays between one token and a block."""
        if self.trace.block_tokens is None:
            return self.fit.asked(tokens)
        return int(scaled_prompts(tokens, self.trace.block_tokens, self.fit.length_scale))


# Prompts rebuilt from the block hashes of a trace: equal ids at equal positions give equal prefixes, to the token.
#
# A trace has the identity of each prompt's blocks, not its words. Each id becomes a text of its own that depends only
# on the id (and the salt of the word source), so that prefixes repeat exactly where they do in the trace, in every
# worker process and in every run.
#
#     id -> its code: words that spell the id in a prefix-free code (digits of base size/2, lowest first; all but the
#           last digit come from the upper half of the words)       so that unequal ids differ within their codes,
#           then random words seeded with the id                    nearly always in the first token
#     text of a block of n tokens = the first n tokens of that
#
# Tokens that the tokenizer itself puts before a prompt count as the first tokens of the first block, so that blocks
# start at the server's block boundaries.


@dataclass(frozen=True)
class BlockPrompts:
    """Writes prompts for hash ids.

    Attributes:
        words: where text comes from. block_tokens: tokens of each block but the last of a prompt.
    """

    words: WordSource
    block_tokens: int

    def prompt(self, hash_ids: Sequence[int], n_tokens: int, rest_seed: int = 0) -> Prompt:
        """A prompt of `n_tokens` tokens (at least one of them ours).

        Args:
            hash_ids: of its blocks in order, each in [0, LARGEST_ID]; ids beyond `n_tokens` are not used.
            rest_seed: of the text behind the last id's block, if the ids do not reach to the end.
        Raises: UsageError if the blocks are too short for unique ids, or token ids are required and none are known.
        """
        text: list[str] = []
        numbers: list[int] = []
        left, added = max(n_tokens, self.words.overhead_tokens + 1), self.words.overhead_tokens
        for hash_id in hash_ids:
            size = min(self.block_tokens, left)
            if not size:
                break
            taken = min(added, size)
            self._write(hash_id, size - taken, size == self.block_tokens, text, numbers)
            left -= size
            added -= taken
        rest = self.words.prompt((rest_seed, left - min(added, left)))
        return "".join([*text, rest]) if isinstance(rest, str) else [*numbers, *rest]

    def _write(self, hash_id: int, size: int, whole: bool, text: list[str], numbers: list[int]) -> None:
        """Append the first `size` tokens of a block.

        Raises: UsageError if a whole block cannot hold the id's code.
        """
        code = self._code(hash_id)
        if whole and len(code) > size:
            raise UsageError(
                f"blocks of {self.block_tokens} tokens are too short to distinguish hash id {hash_id} from others; "
                "use a larger --length-scale"
            )
        code = code[:size]
        filler = self.words.prompt((hash_id, size - len(code)))
        if isinstance(filler, str):
            text += (self.words.spell(code), filler)
        else:
            numbers += self.words.spell_ids(code)
            numbers += (part for part in filler if isinstance(part, int))

    def _code(self, hash_id: int) -> list[int]:
        """The id as word numbers; no code is the beginning of another's."""
        half = self.words.size // 2
        digits = []
        while hash_id >= half:
            hash_id, digit = divmod(hash_id, half)
            digits.append(half + digit)
        return [*digits, hash_id]
