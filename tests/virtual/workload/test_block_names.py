"""Names of KV blocks correspond exactly to prefix ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import ConfigError
from serving.values.prefix_hash import HASH_BYTES
from serving.virtual.workload.block_names import BlockNames

SIZES = st.integers(1, 40)


@st.composite
def prompts(draw: st.DrawFn) -> list[tuple[float, tuple[int, ...]]]:
    """(tokens / trace block, ids) of some prompts with a common prefix, whose ids may or may not reach to the end."""
    base = draw(st.lists(st.integers(0, 2), min_size=8, max_size=8))

    def prompt() -> tuple[float, tuple[int, ...]]:
        own = draw(st.lists(st.integers(0, 2), max_size=3))
        return draw(st.floats(0.01, 10)), (*base[: draw(st.integers(0, 8))], *own)

    return [prompt() for _ in range(draw(st.integers(2, 4)))]


def chained(ids: tuple[int, ...]) -> tuple[int, ...]:
    """Ids that cover their prefix, as in traces."""
    names, name = [], 1
    for block in ids:
        name = name * 3 + block
        names.append(name)
    return tuple(names)


@given(SIZES, SIZES, prompts())
def test_blocks_have_equal_names_where_ids_say_that_they_are_equal(
    trace: int, engine: int, drawn: list[tuple[float, tuple[int, ...]]]
) -> None:
    namer = BlockNames(trace, engine)
    asked = [(max(1, int(blocks * trace)), chained(ids)) for blocks, ids in drawn]
    named = [namer.names(tokens, ids, number) for number, (tokens, ids) in enumerate(asked)]
    for (tokens, _), names in zip(asked, named, strict=True):
        assert len(names) == tokens // engine
    for one in range(len(asked)):
        for other in range(one):
            ids, other_ids = asked[one][1], asked[other][1]
            known = 0
            while known < min(len(ids), len(other_ids)) and ids[known] == other_ids[known]:
                known += 1
            equal = known * trace // engine
            pairs = list(zip(named[one], named[other], strict=False))
            assert all(a == b for a, b in pairs[:equal])
            assert all(a != b for a, b in pairs[equal:])


@given(SIZES, SIZES, st.lists(st.integers(0, 2**63 - 1), max_size=6).map(tuple), st.integers(1, 200))
def test_names_depend_on_nothing_that_was_named_before(
    trace: int, engine: int, ids: tuple[int, ...], tokens: int
) -> None:
    used = BlockNames(trace, engine, remembered=2)
    for number in range(5):
        used.names(tokens, tuple(block ^ number for block in ids), number)
    assert used.names(tokens, ids, 77) == BlockNames(trace, engine).names(tokens, ids, 77)


def test_an_id_after_other_ids_does_not_bring_their_names() -> None:
    used = BlockNames(4, 4)
    for ids in ((1, 5), (2, 5), (5, 1), (2, 5, 7), (3, 5, 7)):
        assert used.names(4 * len(ids), ids, 0) == BlockNames(4, 4).names(4 * len(ids), ids, 0)


def test_names_are_sixteen_spread_bytes_and_all_differ() -> None:
    namer = BlockNames(512, 128)
    names = namer.names(512 * 1000, tuple(range(500)), 0)
    assert len(set(names)) == len(names) == 4000
    assert {len(name) for name in names} == {HASH_BYTES}
    for byte in (0, 7, 8, 15):
        assert len({name[byte] for name in names}) > 240
    namer = BlockNames(4, 4)
    assert namer.names(8, (5, 5), 0)[0] != namer.names(8, (5, 5), 0)[1]
    own = [name for number in range(20) for name in namer.names(40, (), number)]
    given = [name for block in range(20) for name in namer.names(4, (block,), 99)]
    assert len({*own, *given}) == 20 * 10 + 20


def test_recently_used_ids_survive_the_change_of_generations() -> None:
    namer = BlockNames(4, 4, remembered=3)
    first = namer.names(4, (0,), 0)[0]
    for block in range(1, 20):
        assert namer.names(4, (0,), 0)[0] is first
        namer.names(4, (block,), 0)
    for sizes in ((0, 1), (1, 0)):
        with pytest.raises(ConfigError, match="both must be above 0"):
            BlockNames(*sizes)
