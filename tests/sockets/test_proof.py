"""Proof of the secret: accepted and refused peers, and that a recording is worthless."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import ProofError
from serving.sockets.proof import (
    Challenge,
    Channel,
    Opening,
    Proof,
    ProofRefusal,
    Prover,
    Verifier,
    _encode,
    _read,
    refusal,
)
from serving.sockets.secrets import MOST_SECRETS, ClusterSecrets

CHANNEL = Channel("pool", 2, frozenset({"client", "gateway"}))
SECRET = ClusterSecrets(("the secret",))


def exchange(prover: Prover, verifier: Verifier) -> list[bytes]:
    """A whole handshake. Returns: all bodies that were sent."""
    opening = prover.opening
    challenge = verifier.on_frame(opening)
    proof = prover.answer(challenge)
    assert verifier.role == ""
    assert verifier.on_frame(proof) == b""
    assert verifier.proved
    return [opening, challenge, proof]


def test_both_ends_are_proved_and_the_secret_is_not_sent() -> None:
    verifier = Verifier(CHANNEL, SECRET)
    sent = exchange(Prover(CHANNEL, "gateway", SECRET), verifier)
    assert verifier.role == "gateway"
    assert not [body for body in sent if b"the secret" in body]
    assert "the secret" not in repr(SECRET)


@pytest.mark.parametrize(
    ("prover", "told"),
    [
        (Prover(CHANNEL, "client", ClusterSecrets(("a guess",))), "wrong secret; take that of this cluster"),
        (Prover(Channel("link", 2, ()), "client", SECRET), "takes pool connections, not 'link'"),
        (Prover(Channel("pool", 3, ()), "client", SECRET), "protocol 3, this side speaks 2; use the same release"),
        (Prover(CHANNEL, "administrator", SECRET), "role 'administrator' has no place on a pool connection"),
    ],
)
def test_who_is_not_taken_is_told_why(prover: Prover, told: str) -> None:
    with pytest.raises(ProofError, match=told) as refused:
        Verifier(CHANNEL, SECRET).on_frame(prover.opening)
    with pytest.raises(ProofError, match=f"refused: .*{told}"):
        prover.answer(refusal(refused.value))


def test_a_recorded_proof_is_worth_nothing_on_another_connection() -> None:
    opening, challenge, proof = exchange(Prover(CHANNEL, "client", SECRET), Verifier(CHANNEL, SECRET))
    again = Verifier(CHANNEL, SECRET)
    assert again.on_frame(opening) != challenge
    with pytest.raises(ProofError, match="wrong proof"):
        again.on_frame(proof)
    with pytest.raises(ProofError, match="does not know the secret"):
        Prover(CHANNEL, "client", SECRET).answer(challenge)


def test_a_proof_holds_for_its_role_and_its_direction_only() -> None:
    prover, verifier = Prover(CHANNEL, "client", SECRET), Verifier(CHANNEL, SECRET)
    claimed = msgspec.structs.replace(prover._opening, role="gateway")
    challenge = verifier.on_frame(_encode(claimed))
    with pytest.raises(ProofError, match="does not know the secret"):  # the server proved it to a gateway
        prover.answer(challenge)
    with pytest.raises(ProofError, match="wrong proof"):  # the server's proof is not a client's proof
        verifier.on_frame(_encode(Proof(_decoded_proof(challenge))))


def test_a_server_that_does_not_know_the_secret_learns_nothing() -> None:
    prover = Prover(CHANNEL, "client", SECRET)
    for made_up in (Challenge(bytes(32), SECRET.ids[0], bytes(32)), Challenge(b"", SECRET.ids[0], bytes(32))):
        with pytest.raises(ProofError):
            prover.answer(_encode(made_up))
    with pytest.raises(ProofError, match="uses a secret"):
        prover.answer(_encode(Challenge(bytes(32), b"unknown!", bytes(32))))
    with pytest.raises(ProofError, match="same release"):
        prover.answer(_encode(Proof(b"")))


def test_a_proof_cannot_be_passed_on_under_another_certificate() -> None:
    prover, verifier = Prover(CHANNEL, "client", SECRET, b"theirs"), Verifier(CHANNEL, SECRET, b"ours")
    with pytest.raises(ProofError, match="does not know the secret"):
        prover.answer(verifier.on_frame(prover.opening))


def test_old_and_new_secret_are_accepted_while_one_replaces_the_other() -> None:
    old, new, rotated = ClusterSecrets(("old",)), ClusterSecrets(("new",)), ClusterSecrets(("old",))
    assert rotated.replace(("new", "old"))
    assert not rotated.replace(("new", "old"))
    for one, other in ((old, rotated), (rotated, old), (rotated, new), (new, rotated), (rotated, rotated)):
        exchange(Prover(CHANNEL, "client", one), Verifier(CHANNEL, other))
    with pytest.raises(ProofError):
        exchange(Prover(CHANNEL, "client", old), Verifier(CHANNEL, new))
    many = ClusterSecrets([str(number) for number in range(9)])
    assert len(many.ids) == MOST_SECRETS
    assert ClusterSecrets.of(many) is many


FRAMES = st.one_of(
    st.binary(max_size=80),
    st.builds(
        Opening,
        st.sampled_from(["cloudmatrix/1", "x"]),
        st.sampled_from(["pool", "y"]),
        st.sampled_from([1, 2]),
        st.sampled_from(["client", ""]),
        st.binary(max_size=33),
        st.lists(st.binary(max_size=9), max_size=6).map(tuple),
    ).map(_encode),
    st.builds(Challenge, st.binary(max_size=33), st.binary(max_size=9), st.binary(max_size=33)).map(_encode),
    st.builds(Proof, st.binary(max_size=33)).map(_encode),
    st.builds(ProofRefusal, st.text(max_size=9)).map(_encode),
)


@given(frames=st.lists(FRAMES, max_size=4))
def test_no_bytes_of_a_stranger_prove_anything(frames: list[bytes]) -> None:
    verifier, prover = Verifier(CHANNEL, SECRET), Prover(CHANNEL, "client", SECRET)
    for frame in frames:
        with contextlib.suppress(ProofError):
            verifier.on_frame(frame)
        with pytest.raises(ProofError):
            prover.answer(frame)
    assert not verifier.proved


def _decoded_proof(challenge: bytes) -> bytes:
    found = _read(challenge)
    assert isinstance(found, Challenge)
    return found.proof
