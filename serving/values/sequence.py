"""Sequences as values: the immutable specification that a gateway submits, and the values that are returned.

Plain frozen values, because the same ones are scheduled, logged, replayed and sent over a link.
"""

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from serving.ids import BlockHash, NodeId, ReplicaId, SequenceId
from serving.values.kv_hints import SequenceClaim

if TYPE_CHECKING:
    # The interface that code may rely on; virtual time uses views that read like tuples and are free to create.
    Tokens = Sequence[int]
    Extents = Sequence["BlockExtent"]
else:  # the type that a link decodes to
    Tokens = tuple[int, ...]
    Extents = tuple["BlockExtent", ...]


class FinishReason(Enum):
    """Finish reason of a sequence. `STOP` and `LENGTH` reach the client; the others become errors or are dropped."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    DEADLINE = "deadline"
    ERROR = "error"
    GRAMMAR = "grammar"
    """The sequence's grammar or token lists allow no token; true at any instance, so it is not retried."""
    GRAMMAR_LIMIT = "grammar_limit"
    """The sequence's grammar exceeds a limit of this server; true at any instance as well."""


TOO_LARGE = "it is too large for this server: "
"""Beginning of the message about a grammar that reached a limit of this server."""


class GrammarKind(Enum):
    """Language that a grammar is written in."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"
    """llguidance's dialect of Lark."""


class Grammar(Struct, frozen=True, gc=False):
    """Constraint on a whole output. Only this text is sent; each instance builds its matchers from it.

    Args:
        free_whitespace: JSON may have any whitespace between its tokens; otherwise only `", "` and `": "`.
        whitespace_pattern: regular expression of JSON's whitespace; empty = as above.
    """

    kind: GrammarKind
    text: str
    free_whitespace: bool = False
    whitespace_pattern: str = ""


class SamplingParams(Struct, frozen=True, gc=False):
    """Selection of tokens, and when to stop. Neutral defaults; `temperature = 0` is greedy.

    The random number of a token depends only on (`seed`, position), so the result does not depend on batch,
    replica or route. `stop_token_ids` already contains the model's end tokens unless the caller ignores them.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 = disabled."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    """64-bit, unsigned; the gateway draws one if the client sets none."""
    stop_token_ids: tuple[int, ...] = ()
    """A sampled token of this set ends the sequence; masked until there are `min_tokens`."""
    logprobs: int | None = None
    """Top alternatives to report per output token (0 = only the chosen one); None = no log-probabilities."""
    prompt_logprobs: int | None = None
    """The same for prompt tokens; makes the engine compute the whole prompt, cached or not."""
    logprob_ids: tuple[int, ...] = ()
    """With `logprobs`: report these tokens as the alternatives, best first, instead of the likeliest."""
    grammar: Grammar | None = None
    """Grammar that the output must match. Stop tokens are allowed only where it is complete."""
    allowed_token_ids: tuple[int, ...] = ()
    """Tokens that may be sampled; empty = all."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Tokens of words that the output must not contain: the last one is not sampled after the others."""


BACKGROUND_PRIORITY = 1 << 62
"""Priority of work that runs behind the requests of every key, such as lines of a batch. No client can set it."""


class SequenceSpec(Struct, frozen=True, gc=False):
    """One sequence to generate, complete: enough to run it, or to resume it, on any instance.

    Args:
        prompt: token ids, at least one.
        output: tokens generated before (resume); they count against `max_tokens`.
        time_left_s: deadline relative to arrival, because hosts' clocks differ.
        salt: namespace salt, first link of the prefix-hash chain.
        namespace: the tenant, under whose name the pool accounts for the blocks.
        prompt_hashes: prefix hashes of the prompt's leading full blocks, as far as the sender has computed them with
            this salt and the instance's block size; an instance computes the others.
        whole: the instance that computes the prompt also decodes to the end, even if its role is prefill.
        claim: what of its KV to keep in the pool, and for how long; None = nothing. It changes no output.
        line: identifies the API key if several share the system: `priority` then applies among its sequences only.
        salted: `salt` is this request's own, not its namespace's; its blocks are not published to others' routers.
    """

    sequence_id: SequenceId
    prompt: Tokens
    sampling: SamplingParams
    output: tuple[int, ...] = ()
    time_left_s: float = 600.0
    priority: int = 0
    """Lower runs earlier; `BACKGROUND_PRIORITY` behind all others, whatever their keys."""
    salt: bytes = b""
    namespace: str = "default"
    prompt_hashes: tuple[BlockHash, ...] = ()
    whole: bool = False
    line: int = 0
    """0 = `priority` applies among all sequences."""
    claim: SequenceClaim | None = None
    salted: bool = False

    def resumed(
        self, sequence_id: SequenceId, output: tuple[int, ...], time_left_s: float, *, begun: bool
    ) -> "SequenceSpec":
        """The remainder under a new id; prompt log-probabilities are dropped if the response has `begun`."""
        sampling = replace(self.sampling, prompt_logprobs=None) if begun else self.sampling
        return replace(self, sequence_id=sequence_id, sampling=sampling, output=output, time_left_s=time_left_s)


class PoolUse(Struct, frozen=True, gc=False):
    """Use of the KV-cache pool by one prompt.

    Args:
        pulled_tokens: tokens whose KV was read from the pool; also counted among the cached ones.
        recomputed_tokens: tokens that the pool had, or may have had, and that were computed because of `reason`.
        reason: a `MissReason` value; None without a failure.
        ssd_tokens: of the pulled tokens, those that were on SSD.
    """

    pulled_tokens: int = 0
    recomputed_tokens: int = 0
    reason: str | None = None
    ssd_tokens: int = 0


class DraftUse(Struct, frozen=True, gc=False):
    """Result of one step's draft tokens for one sequence: the first `accepted` of `drafted` became output."""

    drafted: int
    accepted: int


class TokenLogprobs(Struct, frozen=True, gc=False):
    """Log-probabilities of one position: its token, then the top alternatives, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class BlockExtent(Struct, frozen=True, gc=False):
    """One KV block as registered by its source. `prefix_hash` is empty for a last, partly filled block."""

    offset: int
    """Byte offset inside the UB segment."""
    checksum: int
    """xxh3-64 of the block's used bytes."""
    used_bytes: int
    prefix_hash: BlockHash


NEVER_MASKED = 1 << 62
"""Position behind any token: none of a sequence's KV was computed while experts were masked."""


class HandoffTicket(Struct, frozen=True, gc=False):
    """The right to pull one sequence's KV blocks from their source, until it is acknowledged or expires."""

    ticket_id: str
    source: ReplicaId
    node_id: NodeId
    segment: str
    """Path of the UB segment on `node_id`."""
    layout: str
    """Fingerprint of model, dtype and block shape; both sides must agree."""
    computed_tokens: int
    """Tokens whose KV is in the blocks."""
    blocks: Extents
    generation: int = 0
    """Generation of the source's region of the segment: shows a reader that the region was reallocated."""
    host: str = ""
    port: int = 0
    """Address at which other hosts read the segment; 0 = none."""
    drafts: tuple[int, ...] = ()
    """Draft tokens after the first token, from the source of the prompt; only a head start."""
    masked_from: int = NEVER_MASKED
    """First position whose KV, like that of all later ones, must not be reused: experts were masked."""
