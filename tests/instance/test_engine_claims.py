"""The engine claims a sequence's blocks in the pool: after its prompt and at its end, behind the stores."""

from msgspec import structs

from serving.instance.core.settings import EngineRole
from serving.values.kv_hints import BlockClaim, ClaimedBlocks, ClaimKind, ClaimSpan, SequenceClaim
from serving.values.prefix_hash import prefix_hashes
from serving.values.sequence import SequenceSpec
from tests.fakes.executor import reference_output
from tests.fakes.pool import FakePool
from tests.instance.bench import PROMPT, spec
from tests.instance.pool_bench import PoolBench


def claiming(name: str, *spans: ClaimSpan, max_tokens: int = 5) -> SequenceSpec:
    return structs.replace(spec(name, max_tokens=max_tokens), claim=SequenceClaim("session", "branch", spans))


def run(one: SequenceSpec, bench: PoolBench) -> list[BlockClaim]:
    bench.engine.add(one, 0.0)
    bench.finish()
    claims = [claim for namespace, claim in bench.cache.pool.claims if namespace == "default"]
    assert all((claim.session, claim.branch, claim.leaf) == ("session", "branch", one.sequence_id) for claim in claims)
    bench.cache.pool.claims.clear()
    return claims


def test_the_prompt_is_claimed_first_and_the_answer_at_its_end() -> None:
    one = claiming("a", ClaimSpan(ClaimKind.RETAIN, 60.0), max_tokens=8)
    hashes = prefix_hashes([*PROMPT, *reference_output(one)[0]], 4)
    prompt, answer = run(one, PoolBench())
    assert prompt.runs == (ClaimedBlocks(ClaimKind.RETAIN, 60.0, tuple(hashes[:2])),)
    assert answer.runs == (ClaimedBlocks(ClaimKind.RETAIN, 60.0, tuple(hashes[2:4])),)


def test_spans_divide_the_blocks_and_what_is_behind_the_last_one_is_not_claimed() -> None:
    spans = (ClaimSpan(ClaimKind.PIN, 3600.0, tokens=5), ClaimSpan(ClaimKind.RETAIN, 300.0, tokens=8))
    one = claiming("a", *spans, max_tokens=8)
    hashes = prefix_hashes(PROMPT, 4)
    prompt, answer = run(one, PoolBench())
    assert prompt.runs == (
        ClaimedBlocks(ClaimKind.PIN, 3600.0, (hashes[0],)),
        ClaimedBlocks(ClaimKind.RETAIN, 300.0, (hashes[1],)),
    )
    assert answer.runs == (), "it only renews"


def test_blocks_that_came_from_the_pool_are_claimed_as_well() -> None:
    pool = FakePool()
    first = PoolBench(pool)
    first.engine.add(spec("a"), 0.0)
    first.finish()
    prompt, _answer = run(claiming("b", ClaimSpan(ClaimKind.RETAIN, 60.0)), PoolBench(pool))
    assert prompt.runs[0].hashes == tuple(prefix_hashes(PROMPT, 4)[:2])


def test_a_prefill_instance_claims_the_prompt() -> None:
    bench = PoolBench(role=EngineRole.PREFILL)
    bench.engine.add(claiming("a", ClaimSpan(ClaimKind.RETAIN, 60.0)), 0.0)
    while not bench.stores:
        plan = bench.act().plan
        if plan is not None:
            bench.engine.step_finished(bench.executor.execute(plan), bench.now)
        while bench.fetches:
            bench.fetch()
    bench.act()
    assert [order.claim is not None for order in bench.stores] == [False, True]


def test_neither_a_cancelled_sequence_nor_one_without_a_claim_claims() -> None:
    assert run(structs.replace(claiming("a"), claim=None), PoolBench()) == []
    bench = PoolBench()
    bench.engine.add(claiming("a", ClaimSpan(ClaimKind.RETAIN, 60.0)), 0.0)
    bench.act()
    bench.engine.cancel(spec("a").sequence_id, 0.0)
    bench.finish()
    assert bench.cache.pool.claims == []
