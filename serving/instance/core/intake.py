"""Checks with which an engine refuses a sequence before it is queued."""

from collections.abc import Iterable

from serving.errors import ContextLengthError, HandoffError, InvalidRequestError, OverloadedError
from serving.ids import BlockHash
from serving.instance.core.scheduler import Scheduler
from serving.instance.core.sequence import LiveSequence
from serving.instance.core.sequence_blocks import blocks_for
from serving.instance.core.settings import EngineRole
from serving.values.layer_split import LayerSplit
from serving.values.sequence import HandoffTicket, SequenceSpec
from serving.values.throughput import BusyThroughput, retry_after_s


def check_spec(spec: SequenceSpec, max_len: int) -> None:
    """Refuse a sequence that can never run on this instance.

    Args:
        max_len: longest prompt plus output of this instance.
    Raises: InvalidRequestError (no prompt, or no tokens left to generate), ContextLengthError (the context is full).
    """
    sampling = spec.sampling
    if not spec.prompt:
        raise InvalidRequestError("the prompt must hold at least one token", param="prompt")
    if spec.output and len(spec.output) >= sampling.max_tokens:
        raise InvalidRequestError(
            f"{len(spec.output)} output tokens given and max_tokens is {sampling.max_tokens}: nothing remains to do",
            param="max_tokens",
        )
    known = len(spec.prompt) + len(spec.output)
    room_for = known + (1 if sampling.max_tokens > 0 else 0)
    if room_for > max_len:
        raise ContextLengthError(
            f"{known} tokens are given and at most {max_len} fit this instance; shorten the prompt", param="prompt"
        )


def check_room(scheduler: Scheduler, max_waiting: int, throughput: BusyThroughput) -> None:
    """Refuse another sequence while the queue is full.

    Raises: OverloadedError with the time after which there will be capacity.
    """
    waiting = len(scheduler.waiting)
    if waiting >= max_waiting:
        wait = retry_after_s(scheduler.queued_tokens(), throughput.tokens_per_s)
        raise OverloadedError(f"{waiting} sequences are already queued", retry_after_s=wait)


def check_adoption(holder: LiveSequence | None, waiting: Iterable[LiveSequence], role: EngineRole) -> None:
    """Check a handoff by its source.

    Args:
        holder: the sequence of this engine that has its blocks; None = another engine has them.
        waiting: the sequences queued here.
    Raises: HandoffError if another engine has them and this one's role is prefill, or if it is taken back twice.
    """
    if holder is None and not role.decodes:
        raise HandoffError("a prefill instance accepts no handoffs; send the ticket to a decode instance")
    if holder is not None and any([sequence.holder is holder for sequence in waiting]):
        raise HandoffError(f"{holder.sequence_id} is already being taken back")


def usable_drafts(sequence: LiveSequence, ticket: HandoffTicket, most: int) -> tuple[int, ...]:
    """Draft tokens of an adopted sequence's ticket; empty if more tokens are known than at the time of drafting.

    Args:
        most: maximum number of draft tokens that one step may verify.
    """
    return ticket.drafts[:most] if len(sequence.tokens) == ticket.computed_tokens + 1 else ()


def adoptable_hashes(
    spec: SequenceSpec, ticket: HandoffTicket, block_tokens: int, split: LayerSplit | None = None
) -> tuple[BlockHash, ...]:
    """Check a ticket against its sequence.

    Returns: prefix hashes of its full blocks after those in the command, as far as the source provided them.
    Raises: HandoffError if the ticket does not fit the sequence.
    """
    computed = ticket.computed_tokens
    known = len(spec.prompt) + len(spec.output)
    if not spec.output or not 1 <= computed < known:
        raise HandoffError(f"ticket of {computed} computed tokens does not fit {known} known tokens; prefill again")
    rows = blocks_for(computed, block_tokens)
    if len(ticket.blocks) != (rows if split is None else split.present(rows, computed, block_tokens)):
        raise HandoffError(
            f"ticket has {len(ticket.blocks)} blocks for {computed} tokens in blocks of {block_tokens}; "
            "both sides need the same block size"
        )
    hashes: list[BlockHash] = []
    for extent in ticket.blocks[len(spec.prompt_hashes) : computed // block_tokens]:
        if not extent.prefix_hash:
            break
        hashes.append(extent.prefix_hash)
    return tuple(hashes)
