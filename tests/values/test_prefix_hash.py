"""Chained prefix hashes: equal exactly when tokens and salt are equal from the start."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from serving.ids import BlockHash
from serving.values.prefix_hash import HASH_BYTES, block_hash, chain_root, extend_hashes, prefix_hashes

token_lists = st.lists(st.integers(0, 2**32 - 1), max_size=40)


@given(token_lists, token_lists, st.integers(1, 5))
def test_hashes_agree_exactly_on_the_common_prefix(a: list[int], b: list[int], block_tokens: int) -> None:
    hashes_a, hashes_b = prefix_hashes(a, block_tokens), prefix_hashes(b, block_tokens)
    for index, (x, y) in enumerate(zip(hashes_a, hashes_b, strict=False)):
        end = (index + 1) * block_tokens
        assert (x == y) == (a[:end] == b[:end])


@given(token_lists, st.integers(1, 5), st.data())
def test_extension_in_pieces_equals_one_go(tokens: list[int], block_tokens: int, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=4)))
    hashes: list[BlockHash] = []
    for cut in [*cuts, len(tokens), len(tokens)]:
        extend_hashes(hashes, tokens[:cut], block_tokens, b"salt")
    assert tuple(hashes) == prefix_hashes(tokens, block_tokens, b"salt")
    assert len(hashes) == len(tokens) // block_tokens


def test_salts_share_nothing() -> None:
    tokens = list(range(12))
    chains = [prefix_hashes(tokens, 4, salt) for salt in (b"", b"a", b"b", b"a" * 1000)]
    assert len({h for chain in chains for h in chain}) == 12


def test_a_block_does_not_match_at_another_place() -> None:
    same = prefix_hashes([5, 6] * 4, 2)
    assert all(x != y for x, y in pairwise(same))
    assert all(len(h) == HASH_BYTES for h in same)


def test_hashes_are_pinned() -> None:
    """Hosts and releases share the hashes; a change is a protocol change."""
    assert block_hash(chain_root(b""), [1, 2, 3, 4]).hex() == "4d2b4c1f81a970999a9645b66650893f"
