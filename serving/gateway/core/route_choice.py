"""Choice of an instance for a sequence: `GatewayRouter`'s rules applied to this gateway's view of its instances."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from msgspec.structs import replace

from serving.gateway.core.concurrency import PoolSlots
from serving.gateway.core.gateway_router import GatewayRouter
from serving.gateway.core.instances import Instances, OutputReserve
from serving.gateway.core.journal_commands import NeedDecode, NeedPrefill
from serving.gateway.core.journal_phase import JournalPhase
from serving.gateway.core.request_journal import SequenceJournal
from serving.gateway.core.route_decision import InstanceView, RouteDecision
from serving.ids import BlockHash, ReplicaId, SequenceId
from serving.values.health import decodes_to_avoid, prefills_to_avoid
from serving.values.news import Leaving, News, Prefilled
from serving.values.prefix_hash import prefix_hashes
from serving.values.sequence import SequenceSpec


@dataclass(frozen=True, slots=True)
class Idlest:
    """The instance with the fewest sequences.

    Args:
        load: its sequences.
        among: number of instances compared.
    """

    replica: ReplicaId
    load: int
    among: frozenset[ReplicaId]


class Routes:
    """Chooses instances for one gateway.

    Args:
        pools: names of the engine pools in the order in which a request passes them; one name when a pool does both.
        router: makes the decisions; must be unused.
    """

    def __init__(self, instances: Instances, pools: tuple[str, ...], block_tokens: int, router: GatewayRouter) -> None:
        self._instances = instances
        self._router = router
        self._pools = pools
        self._prefill, self._decode = pools[0], pools[-1]
        self._block_tokens = block_tokens
        self._reserve = OutputReserve(block_tokens)
        self._no_decode_since: float | None = None
        self._books_prompts = False
        """Whether placing a prompt also reserves the expected output, since one pool does both."""
        self.moved: Counter[ReplicaId] = Counter()
        """Sequences that leaving instances have handed to others, while such an instance is known."""

    def open(self, now: float) -> bool:
        """Whether an instance is available to a request that arrives now."""
        return self._instances.any_open(self._pools, now)

    def slots(self, now: float) -> PoolSlots | None:
        """This gateway's share of the instances' batch slots; None if one does not report them, or there is none."""
        self._books_prompts = self._prefill == self._decode
        prefills = self._staying(self._prefill, now)
        decodes = prefills if self._decode == self._prefill else self._staying(self._decode, now)
        apart = decodes is not prefills and bool(prefills and decodes)
        prefills, decodes = prefills or decodes, decodes or prefills  # either role replaces the other
        if not decodes or not all([view.max_sequences for view in (*prefills, *decodes)]):
            return None
        return PoolSlots(
            int(sum([_slots(view) for view in decodes])),
            int(sum([view.max_step_tokens / view.gateways for view in prefills])),
            max([view.max_step_tokens for view in prefills]),
            int(sum([view.kv_blocks_total / view.gateways for view in decodes]) * self._block_tokens),
            int(sum([_free(view) for view in decodes]) * self._block_tokens),
            apart,
        )

    def decodes_nowhere(self, now: float) -> float:
        """Time without a decode instance [s]. Effects: the time starts with the first call that finds none."""
        if self._instances.any_open((self._decode,), now):
            self._no_decode_since = None
            return 0.0
        self._no_decode_since = now if self._no_decode_since is None else self._no_decode_since
        return now - self._no_decode_since

    def hashes(self, spec: SequenceSpec) -> tuple[BlockHash, ...]:
        """Hashes of the prompt's full blocks, if routing needs them. They are sent with it, so instances reuse them.

        A prompt of 4,096 tokens takes about a quarter of a millisecond.
        """
        if not self._router.wants_hashes:
            return spec.prompt_hashes
        return spec.prompt_hashes or prefix_hashes(spec.prompt, self._block_tokens, spec.salt)

    def grew(self, sequence_id: SequenceId, tokens: int) -> None:
        """Count new tokens of a sequence."""
        self._reserve.grew(sequence_id, tokens)

    def ended(self, sequence_id: SequenceId) -> None:
        """Release the reservation of a sequence."""
        self._reserve.drop(sequence_id)

    def promised(self, replica: ReplicaId) -> int:
        """Expected growth of this gateway's sequences at an instance [KV blocks]."""
        return self._reserve.blocks(replica)

    def stays(self, replica: ReplicaId, journal: SequenceJournal, item: News, now: float) -> bool:
        """Whether a sequence that an instance wants moved stays there, because no other instance can take it.

        Effects: counts moved prompts, handoffs and streams.
        """
        if type(item) is Leaving:
            if not self._instances.any_open((self._decode,) if item.handoff else self._pools, now):
                return True
            self.moved[replica] += 1
        elif type(item) is Prefilled and journal.phase is JournalPhase.DECODING:
            self.moved[replica] += 1
        return False

    def computed_elsewhere(self, source: ReplicaId, now: float) -> bool:
        """Whether a stream that no instance can adopt is recomputed on another instance.

        True if prefill instances also decode, for lack of decode instances, and `source` is a draining one of them:
        prefill instances never adopt. The last decode instance keeps its streams while it drains.
        """
        known = self._instances.find(source)
        if known is None or known.pool == self._decode or self._staying(self._decode, now):
            return False
        return any([view.replica != source for view in self._staying(self._prefill, now)])

    def decide(
        self,
        need: NeedPrefill | NeedDecode,
        journal: SequenceJournal,
        now: float,
        closed: Collection[ReplicaId | None] = (),
    ) -> RouteDecision:
        """Choose an instance and reserve for the sequence.

        Args:
            closed: instances that must not be chosen.
        Raises: UnavailableError if there is none.
        """
        spec, output = journal.spec, len(journal.output)
        tokens = len(spec.prompt) + output
        left = spec.sampling.max_tokens - output
        blocks = -(-tokens // self._block_tokens) + 1
        exclude = need.exclude
        path_faults = self._instances.path_faults(self._decode, now)
        if isinstance(need, NeedDecode):
            if path_faults:
                exclude = (*exclude, *decodes_to_avoid(need.ticket.source, path_faults))
            needed = blocks + self._reserve.expected_blocks(left)
            views = self._holding(self._views(self._decode, now), tokens + 1)
            decision = self._router.decode(_open(views, closed), needed, exclude, need.ticket.node_id)
            self._instances.reserve(decision.replica, decision.tokens, blocks)
            self._reserve.book(spec.sequence_id, decision.replica, left)
            return decision
        # Without a prefill pool, decode instances compute prompts, only less efficiently.
        views = self._staying(self._prefill, now) or self._views(self._decode, now)
        views = _open(self._roomy(views, tokens + min(left, 2), now), closed)
        if path_faults:
            exclude = (*exclude, *prefills_to_avoid([view.replica for view in views], path_faults))
        decision = self._router.prefill(views, need.tokens, exclude, spec.prompt_hashes)
        self._instances.reserve(decision.replica, decision.tokens, blocks)
        if self._books_prompts:
            self._reserve.book(spec.sequence_id, decision.replica, left)
        return decision

    def idlest(self, journal: SequenceJournal, now: float) -> Idlest | None:
        """The instance on which a sequence would soonest be alone, from its prompt to its end."""
        known = len(journal.spec.prompt) + len(journal.output)
        views = self._staying(self._prefill, now) or self._staying(self._decode, now)
        views = self._roomy(views, known + min(journal.spec.sampling.max_tokens - len(journal.output), 2), now)
        loads = [(view.sequences + view.reserved_sequences, view.replica) for view in views]
        if not loads:
            return None
        load, replica = min(loads)
        return Idlest(replica, load, frozenset(view.replica for view in views))

    def forget(self, replica: ReplicaId) -> None:
        """Drop the state kept about a lost instance."""
        self._router.forget(replica)
        self.moved.pop(replica, None)

    def _staying(self, pool: str, now: float) -> list[InstanceView]:
        return [view for view in self._views(pool, now) if not view.draining]

    def _roomy(self, views: list[InstanceView], tokens: int, now: float) -> list[InstanceView]:
        """Views with capacity for these tokens; if there are none, decode instances with it; if there are none, all.

        The token that fills an instance is the last it can generate, so generating more needs capacity for two. A
        prompt, or a stream that a prefill instance started, may be too long for every prefill instance.
        """
        return self._holding(views, tokens) or self._holding(self._staying(self._decode, now), tokens) or views

    def _holding(self, views: list[InstanceView], tokens: int) -> list[InstanceView]:
        """Views whose total memory can hold these tokens: the others would refuse them however long they wait."""
        blocks = -(-tokens // self._block_tokens)
        return [view for view in views if view.kv_blocks_total >= blocks]

    def _views(self, pool: str, now: float) -> list[InstanceView]:
        views, blocks_of = [], self._reserve.blocks
        for known in self._instances.live(pool, now):
            view = known.view
            assert view is not None, "live ones have reported"
            promised = blocks_of(known.replica)
            if view.promised_blocks != promised:
                view = known.view = replace(view, promised_blocks=promised)
            views.append(view)
        return views


def _open(views: list[InstanceView], closed: Collection[ReplicaId | None]) -> list[InstanceView]:
    return [view for view in views if view.replica not in closed] if closed else views


def _starved(view: InstanceView) -> bool:
    """Whether its sequences wait for blocks, not for a slot or a step: too few are free for another sequence."""
    used = view.kv_blocks_total - view.kv_blocks_free
    return view.waiting > 0 and view.kv_blocks_free * (view.sequences - view.waiting) < used


def _slots(view: InstanceView) -> float:
    """One gateway's share of its concurrent sequences: if blocks are short, as many as have some."""
    most = max(1, view.sequences - view.waiting) if _starved(view) else view.max_sequences
    return min(most, view.max_sequences) / view.gateways


def _free(view: InstanceView) -> float:
    if _starved(view):
        return 0.0
    return max(0, view.kv_blocks_free / view.gateways - view.reserved_blocks - view.promised_blocks)
