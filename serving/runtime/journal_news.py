"""What instances tell, told to the journal of the sequence that it concerns."""

from serving.ids import SequenceId
from serving.link import messages as m
from serving.policy.request_journal import Commands, SequenceJournal
from serving.runtime.instance_link import InstanceLink


def tell(journal: SequenceJournal, item: m.News, *, begun: bool) -> Commands:
    """One piece of news to the journal it concerns.

    Args:
        begun: the client has been told something of the request, if not of this sequence.
    """
    match item:
        case m.Tokens():
            return journal.tokens(
                item.sequence_id,
                item.position,
                item.tokens,
                item.logprobs,
                item.prompt_logprobs,
                item.cached_tokens,
                item.finish,
                item.pool,
                item.drafts,
            )
        case m.Prefilled(first=first, ticket=ticket):
            return journal.handoff_ready(
                first.sequence_id,
                ticket,
                first.position,
                first.tokens,
                first.logprobs,
                first.prompt_logprobs,
                first.cached_tokens,
                first.pool,
            )
        case m.Adopted():
            return journal.adopted(item.sequence_id)
        case m.Lost():
            return journal.failed(item.sequence_id, item.reason)
        case m.Refused():
            return journal.refused(item.sequence_id, item.kind, item.reason, begun=begun)
        case m.Leaving():
            return journal.leaving(item.sequence_id)


def decline(link: InstanceLink, sent_id: SequenceId, item: m.News) -> None:
    """News of a job that is over: whoever still works on it, or holds blocks for it, is told to stop."""
    if isinstance(item, m.Prefilled):
        link.send(m.Release(item.ticket.ticket_id))
    elif isinstance(item, m.Tokens | m.Adopted | m.Leaving) and not (isinstance(item, m.Tokens) and item.finish):
        link.send(m.Cancel(sent_id))
