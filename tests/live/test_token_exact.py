"""On every path through the pools, a sequence's tokens equal those of one plain process."""

import asyncio
import random

import pytest
from msgspec import structs

from serving.values.jobs import SequenceUpdate
from serving.values.sequence import Grammar
from tests.cases.nightly import mostly_nightly
from tests.live.harness import Start
from tests.live.workload import GREEDY, LETTERS, Ask, Reference, tokens, varied_asks

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]

TOPOLOGIES = {
    "one-and-one": ("prefill", "decode"),
    "two-and-two": ("prefill", "prefill", "decode", "decode"),
    "aggregated": ("aggregated", "aggregated"),
}


SAME_AS = "tests/live/test_token_exact.py::test_varied_requests_at_once"


@pytest.mark.parametrize("topology", mostly_nightly(TOPOLOGIES, ("two-and-two", "aggregated"), SAME_AS))
async def test_varied_requests_at_once(started: Start, topology: str, reference: Reference) -> None:
    asks = varied_asks(block_tokens=16, step_tokens=64)[:70]
    pools = await started(*TOPOLOGIES[topology], pool_mib=2)
    told = await asyncio.gather(*(pools.ask(ask) for ask in asks))
    for ask, answer in zip(asks, told, strict=True):
        assert answer.tokens == reference.outputs(ask), ask
        assert answer.finish == reference.finishes(ask), ask
    await pools.audit()
    worked = [instance.engine.snapshot(0.0) for instance in pools.instances]
    assert all(snapshot.steps_total > 0 for snapshot in worked), "every instance had its share"
    if topology != "aggregated":
        sequences = sum(ask.n for ask in asks if ask.sampling.max_tokens > 1)
        assert 0 < sum(s.handoffs_in_total for s in worked) <= sequences
        assert sum(s.handoff_bytes_in_total for s in worked) > 0


async def test_handoffs_between_nodes(started: Start, reference: Reference) -> None:
    asks = varied_asks(block_tokens=16, step_tokens=64)[:40]
    pools = await started(
        "prefill", "decode", nodes=("left", "right")
    )  # prefill on the left, decode on the right: every handoff crosses
    told = await asyncio.gather(*(pools.ask(ask) for ask in asks))
    assert [answer.tokens for answer in told] == [reference.outputs(ask) for ask in asks]
    assert pools.of("decode")[0].engine.snapshot(0.0).handoffs_in_total > 0
    await pools.audit()


PREEMPTED = [("one-and-one", None), ("aggregated", LETTERS)]


@pytest.mark.nightly("tests/live/test_token_exact.py::test_varied_requests_at_once")
@pytest.mark.parametrize(("topology", "grammar"), PREEMPTED)
async def test_preempted_sequences(
    started: Start, topology: str, grammar: Grammar | None, reference: Reference
) -> None:
    rng = random.Random(3)
    sampling = structs.replace(GREEDY, max_tokens=70, grammar=grammar)
    asks = [Ask(tokens(rng, rng.randrange(60, 90)), sampling) for _ in range(24)]
    pools = await started(*TOPOLOGIES[topology][-1:] if topology == "aggregated" else TOPOLOGIES[topology], pool_mib=1)
    preempted, told_of = 0, 0
    for _ in range(8):  # where prompts come slowly, a wave may pass without crowding
        told = await asyncio.gather(*(pools.ask(ask) for ask in asks))
        assert [answer.tokens for answer in told] == [reference.outputs(ask) for ask in asks]
        told_of += sum(sum(answer.preempted) for answer in told)
        preempted = sum(i.engine.snapshot(0.0).preemptions_total for i in pools.instances)
        if preempted:
            break
    await pools.audit()
    assert preempted == told_of > 0, "each sequence is told how often"


async def test_a_repeated_prompt_is_cached_and_said_so(started: Start, reference: Reference) -> None:
    ask = Ask(tuple(range(100)))
    pools = await started("prefill", "decode")
    first, second = await pools.ask(ask), await pools.ask(ask)
    assert first.tokens == second.tokens == reference.outputs(ask)
    assert first.cached == [0]
    assert second.cached == [96], "six full blocks of 16 tokens"
    await pools.audit()


async def test_log_probabilities_come_with_each_token(started: Start, reference: Reference) -> None:
    ask = Ask(tuple(range(40)), structs.replace(GREEDY, logprobs=2, prompt_logprobs=1))
    pools = await started("prefill", "decode")
    generation = pools.submit(ask)
    updates: list[SequenceUpdate] = []
    while news := await generation.next():
        updates += news
    logprobs = [entry for update in updates for entry in update.news.logprobs]
    assert [entry.token for entry in logprobs] == reference.outputs(ask)[0]
    assert all(len(entry.top) == 2 and entry.top[0][0] == entry.token for entry in logprobs), "greedy = the best"
    prompt = [entry for update in updates for entry in update.news.prompt_logprobs]
    assert [entry.token for entry in prompt] == list(ask.prompt[1:])
    await pools.audit()
