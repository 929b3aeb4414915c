"""Which requests have their prefixes loaded from SSD ahead."""

from msgspec.structs import replace

from serving.gateway.core import events as e
from serving.gateway.core.gateway_admission import AdmissionLimits
from serving.gateway.core.prefetch_choice import LONG_TOKENS, NEXT
from serving.ids import BlockHash
from serving.values.jobs import GenerationJob
from serving.values.prefix_hash import prefix_hashes
from tests.gateway.core.bench import BLOCK_TOKENS, IDLE, GatewayBench, job

LONG = tuple(range(LONG_TOKENS))
SHORT = tuple(range(3 * BLOCK_TOKENS))


def bench(*, prefetch: bool = True) -> GatewayBench:
    """One instance, and one sequence at a time."""
    made = GatewayBench(prefetch=prefetch, history_blocks=1000, limits=AdmissionLimits(100, 1_000_000, 1))
    for pool in ("prefill", "decode"):
        made.up(pool, kv_blocks=1000, status=replace(IDLE, blocks_free=1000))
    return made


def asked(bench: GatewayBench, request: GenerationJob) -> list[tuple[BlockHash, ...]]:
    """Submit a request. Returns: the prefixes to be loaded."""
    before = len(bench.prefetches)
    bench.submit(request)
    return [one.hashes for one in bench.prefetches[before:]]


def test_what_waits_or_is_long_is_loaded_ahead_each_prompt_once() -> None:
    one = bench()
    assert asked(one, job(prompt=SHORT)) == [], "it starts at once"
    assert asked(one, job(prompt=SHORT)) == [prefix_hashes(SHORT, BLOCK_TOKENS, b"")]
    assert asked(one, job(prompt=(1, 2, 3))) == [], "no full block"
    assert len(asked(one, job(3, prompt=SHORT, namespace="red"))) == 1
    assert one.prefetches[-1].namespace == "red"
    idle = bench()
    assert asked(idle, job(prompt=LONG)) == [prefix_hashes(LONG, BLOCK_TOKENS, b"")]


def test_of_a_long_queue_only_the_next_few_are_loaded_until_their_turn_comes() -> None:
    one = bench()
    prompts = [tuple(range(n, n + 2 * BLOCK_TOKENS)) for n in range(0, 1000, 100)]
    numbers = [one.submit(job(prompt=prompt)) for prompt in prompts]
    named = [prefix_hashes(prompt, BLOCK_TOKENS, b"") for prompt in prompts]
    assert [found.hashes for found in one.prefetches] == named[1 : 1 + NEXT], "the first has started"
    one.tell(e.CancelJob(numbers[0]))
    assert [found.hashes for found in one.prefetches] == named[1 : 2 + NEXT], "one has started, the next is loaded"
    one.tell(e.CancelJob(numbers[1]))
    one.tell(e.CancelJob(numbers[2]))
    assert [found.hashes for found in one.prefetches] == named[1 : 4 + NEXT]


def test_without_an_ssd_tier_and_for_refused_requests_nothing_is_asked() -> None:
    off = bench(prefetch=False)
    assert [asked(off, job(prompt=LONG)) for _ in range(2)] == [[], []]
    full = bench()
    full.tell(e.Configure(AdmissionLimits(1, 1_000_000, 1), 3, 30.0, 5.0))
    assert [len(asked(full, job(prompt=SHORT))) for _ in range(3)] == [0, 1, 0]
    assert len(full.rejected) == 1
