"""A single decode instance in virtual time, and its events for gateways."""

from dataclasses import dataclass, field

from serving.ids import BlockHash, NodeId, ReplicaId, SequenceId
from serving.instance.core.placeholder import PlaceholderPrompt
from serving.instance.core.settings import EngineRole, EngineSettings
from serving.values.news import Adopted, News, Tokens
from serving.values.orders import Adopt
from serving.values.sequence import BlockExtent, HandoffTicket, SamplingParams, SequenceSpec
from serving.virtual.decode import DecodeInstance
from serving.virtual.event_queue import EventQueue
from serving.virtual.instance_driver import DriverContext
from serving.virtual.ports import Done

BLOCK = 16


class Steady:
    """Every iteration takes a second; a prompt chunk half a second more."""

    def prefill(self, tokens: float, attended_tokens: float, largest: float = 0.0) -> float:
        return 1.0

    def decode(self, requests: float, context_tokens: float, mean_requests: float, groups: int = 0) -> float:
        return 1.0

    def chunk_on_decode_die(self, tokens: int, attended_tokens: float) -> float:
        return 0.5


class Instant:
    """Every transfer takes a moment."""

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue

    def pull(self, order: object, target: ReplicaId, die: int, tokens: int, done: Done) -> None:
        self._queue.at(self._queue.now + 0.25, done, (order, tokens, None))

    def fetch(self, order: object, instance: ReplicaId, done: Done) -> None:
        raise AssertionError("there is no pool")

    store = fetch


@dataclass
class Listener:
    """Records the gateways' events."""

    queue: EventQueue
    ends: dict[str, float] = field(default_factory=dict)
    tokens_of: dict[str, int] = field(default_factory=dict)
    adoptions: dict[str, float] = field(default_factory=dict)

    def hear(self, replica: ReplicaId, news: tuple[News, ...]) -> None:
        for one in news:
            match one:
                case Tokens(sequence_id=name, tokens=tokens):
                    self.tokens_of[name] = self.tokens_of.get(name, 1) + len(tokens)
                    if one.finish_reason is not None:
                        self.ends[name] = self.queue.now
                case Adopted(sequence_id=name):
                    self.adoptions[name] = self.queue.now
                case _:
                    raise AssertionError(one)


def adopt(instance: DecodeInstance, number: int, prompt: int, output: int) -> None:
    spec = SequenceSpec(
        SequenceId(f"g0-{number}/0@1"),
        PlaceholderPrompt(prompt),
        SamplingParams(max_tokens=output, seed=number),
        output=(0,),
    )
    extent = BlockExtent(0, 0, 1, BlockHash(b""))
    blocks = -(-prompt // BLOCK)
    ticket = HandoffTicket(f"t{number}", ReplicaId("p"), NodeId(""), "", "", prompt, (extent,) * blocks)
    instance.take(Adopt(spec, ticket))


def play(
    arrivals: list[tuple[int, int, int]], groups: int, blocks: int, drafts: int, at_once: int
) -> tuple[Listener, DecodeInstance]:
    queue = EventQueue()
    listener = Listener(queue)
    engine = EngineSettings(
        EngineRole.DECODE, BLOCK, 256, 4, max_waiting=100, max_model_len=1000, draft_tokens=drafts, cache_decoded=False,
        prefix_reuse=False,
    )  # fmt: skip
    instance = DecodeInstance(
        ReplicaId("d"), "decode", 1, groups, engine, blocks,
        DriverContext(queue, Steady(), lambda _: listener, Instant(queue), 1),
        lambda _step: 1.0, drafts, 0.7, at_once=at_once,
    )  # fmt: skip
    for number, (at, prompt, output) in enumerate(arrivals):
        queue.at(at * 0.375 + number / 1024, lambda order: adopt(instance, *order), (number, prompt, output))
    queue.run(until=100_000.0)
    return listener, instance
