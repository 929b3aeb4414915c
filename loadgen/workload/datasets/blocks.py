"""Prompts rebuilt from the block hashes of a trace: equal ids at equal positions give equal prefixes, to the token.

A trace has the identity of each prompt's blocks, not its words. Each id becomes a text of its own that depends only on
the id (and the salt of the word source), so that prefixes repeat exactly where they do in the trace, in every worker
process and in every run.

    id -> its code: words that spell the id in a prefix-free code (digits of base size/2, lowest first; all but the
          last digit come from the upper half of the words)       so that unequal ids differ within their codes,
          then random words seeded with the id                    nearly always in the first token
    text of a block of n tokens = the first n tokens of that

Tokens that the tokenizer itself puts before a prompt count as the first tokens of the first block, so that blocks start
at the server's block boundaries.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.errors import UsageError
from loadgen.plan import Prompt
from loadgen.workload.ports import WordSource


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
