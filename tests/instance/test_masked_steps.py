"""KV that was computed while experts were masked is used by its own sequence only, and its tokens are counted."""

import pytest
from msgspec import structs

from serving.ids import ReplicaId
from serving.instance.core.events import HandoffReady
from serving.instance.core.settings import EngineRole
from serving.values.news import Tokens
from serving.values.prefix_hash import prefix_hashes
from serving.values.sequence import NEVER_MASKED
from tests.fakes.executor import reference_output
from tests.fakes.pool import FakePool
from tests.fakes.transport import FakeFabric, FakeTransport
from tests.instance.bench import PROMPT, Bench, spec
from tests.instance.pool_bench import PoolBench


def run(bench: Bench) -> list[Tokens]:
    """Complete all sequences."""
    events: list[Tokens] = []
    while not bench.engine.idle():
        events += [one for one in bench.step() if isinstance(one, Tokens)]
    return events


def test_blocks_are_not_matched_from_the_first_masked_token_on() -> None:
    """The first output token, at position 10, is fed in a masked step: blocks 0 and 1 of 4 tokens stay exact."""
    bench, one = Bench(), spec("a", max_tokens=7)
    bench.executor.masked_steps = {1}
    bench.engine.add(one, 0.0)
    assert [event.masked for event in run(bench)] == [0, 1, 0, 0, 0, 0, 0]
    longer = (*PROMPT, *reference_output(one)[0])
    bench.engine.add(spec("b", longer, max_tokens=1), 0.0)
    assert run(bench)[0].cached_tokens == 8
    bench.engine.add(spec("c", longer, max_tokens=1), 0.0)
    assert run(bench)[0].cached_tokens == 16, "b has computed them with all experts"


@pytest.mark.parametrize("masked", [False, True])
def test_a_masked_prompt_is_neither_matched_nor_stored(masked: bool) -> None:
    pool = FakePool()
    first = PoolBench(pool)
    first.executor.masked_steps = {0} if masked else set()
    first.engine.add(spec("a"), 0.0)
    assert sum(event.masked for event in first.finish()) == 10 * masked
    assert len(first.engine.scheduler.blocks.pool.match(prefix_hashes(PROMPT, 4), 2)) == (0 if masked else 2)
    second = PoolBench(pool)
    second.engine.add(spec("a"), 0.0)
    assert second.finish()[0].cached_tokens == (0 if masked else 8)


def test_a_preempted_sequence_is_computed_again_and_may_be_matched() -> None:
    bench = Bench()
    bench.executor.masked_steps = {0}
    bench.engine.add(spec("a"), 0.0)
    bench.step()
    (sequence,) = bench.engine.sequences.values()
    assert (sequence.masked_from, sequence.reusable(10), sequence.next_full) == (0, 0, 12)
    sequence.restart()
    assert (sequence.masked_from, sequence.reusable(10), sequence.next_full) == (NEVER_MASKED, 10, 0)


def test_a_ticket_says_from_where_on_kv_was_masked() -> None:
    """The prompt's second chunk, of 2 tokens, is masked. The adopting instance matches what lies before."""
    prefill, decode = Bench(EngineRole.PREFILL, max_step_tokens=8), Bench(EngineRole.DECODE)
    prefill.executor.masked_steps = {1}
    one = spec("a")
    prefill.engine.add(one, 0.0)
    (ready,) = (event for _ in range(2) for event in prefill.step() if isinstance(event, HandoffReady))
    assert (ready.first.masked, ready.masked_from, len(ready.hashes)) == (2, 8, 2)
    fabric = FakeFabric()
    source = FakeTransport(fabric, ReplicaId("p"), prefill.executor)
    ticket = source.register(ready.ticket_id, ready.blocks, ready.hashes, ready.computed_tokens)
    ticket = structs.replace(ticket, masked_from=4)
    adopted = structs.replace(one, output=ready.first.tokens)
    assert decode.engine.adopt(adopted, ticket, 0.0) is None
    (pull,) = decode.engine.next_action(0.0).pulls
    moved = FakeTransport(fabric, ReplicaId("d"), decode.executor).pull(ticket, pull.first_block, pull.blocks)
    decode.engine.pull_finished(adopted.sequence_id, None, moved, 0.0)
    run(decode)
    known = [decode.engine.scheduler.blocks.pool.find(extent.prefix_hash) for extent in ticket.blocks[:2]]
    assert [block is None for block in known] == [False, True]
