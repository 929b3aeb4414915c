"""Salts that separate tenants, names that are valid folders, and quotas shared like the blocks."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.ids import NodeId
from serving.values.pool_view import (
    EMPTY_VIEW,
    NamespaceRecord,
    PoolView,
    ServerRecord,
    ServerState,
    ViewServer,
    is_namespace_name,
    namespace_salt,
    request_salt,
    server_quotas,
)
from serving.values.prefix_hash import prefix_hashes


def view(**weights: float) -> PoolView:
    def record(name: str) -> ServerRecord:
        return ServerRecord(name, "i", NodeId("n"), "h", 1, "s", 0, 1, ServerState.ACTIVE, 0.0)

    return PoolView("v", tuple(ViewServer(record(name), weight) for name, weight in weights.items()))


def test_equal_prompts_of_two_tenants_or_two_salts_share_no_block() -> None:
    tokens = list(range(64))
    salts = [
        request_salt(namespace_salt(secret, name), cache_salt)
        for secret, name, cache_salt in product((b"", b"s", b"s" * 200), ("default", "a", "b"), (None, "", "x", "y"))
    ]
    hashes = [h for salt in salts for h in prefix_hashes(tokens, 16, salt)]
    assert len(set(hashes)) == len(hashes) == len(salts) * 4


def test_salts_are_the_same_in_every_process() -> None:
    assert namespace_salt(b"secret", "a").hex() == "e0fa1b283489dbd65f1111d15215241e"
    assert request_salt(namespace_salt(b"secret", "a"), "x").hex() == "a4192ea0b263ea874262831b9de6cc39"
    assert request_salt(b"n" * 16, None) == b"n" * 16
    assert namespace_salt(b"x" * 100 + b"1", "a") != namespace_salt(b"x" * 100 + b"2", "a"), "to their end"
    assert request_salt(b"n" * 16, "\ud800") != request_salt(b"n" * 16, "?"), "any text can be one"


@given(
    st.lists(st.tuples(st.sampled_from(["a", "ab", "b"]), st.none() | st.text(max_size=4)), unique=True, max_size=30)
)
def test_different_requests_have_different_salts(requests: list[tuple[str, str | None]]) -> None:
    salts = {request_salt(namespace_salt(b"k", name), cache_salt) for name, cache_salt in requests}
    assert len(salts) == len(requests)


@pytest.mark.parametrize("name", ["default", "a", "Team_1.eu-west", "0", "x" * 64])
def test_good_names(name: str) -> None:
    assert is_namespace_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "-x", "_x", "a/b", "a b", "a\n", "ä", "x" * 65, "a\0"])
def test_names_that_cannot_be_a_folder_or_a_label(name: str) -> None:
    assert not is_namespace_name(name)


def test_quotas_are_shared_by_weight() -> None:
    records = [NamespaceRecord("a", 1000), NamespaceRecord("free"), NamespaceRecord("tiny", 1)]
    shares = server_quotas(records, view(x=1.0, y=0.5, z=0.5))
    assert shares == {"x": {"a": 500, "tiny": 1}, "y": {"a": 250, "tiny": 1}, "z": {"a": 250, "tiny": 1}}


def test_a_draining_server_has_no_limit_and_takes_no_share() -> None:
    shares = server_quotas([NamespaceRecord("a", 1000)], view(x=1.0, old=0.0))
    assert shares == {"x": {"a": 1000}, "old": {}}
    assert server_quotas([NamespaceRecord("a", 1000)], view(old=0.0)) == {"old": {}}
    assert server_quotas([NamespaceRecord("a", 1000)], EMPTY_VIEW) == {}
