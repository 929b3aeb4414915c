"""An instance driver's reports about blocks that are only accounted."""

import pytest

from serving.ids import BlockHash, NodeId, ReplicaId, SequenceId
from serving.instance.core.intake import adoptable_hashes
from serving.values.sequence import BlockExtent, HandoffTicket, SamplingParams, SequenceSpec
from serving.virtual.instance_driver import AccountedExtents

HASHES = (BlockHash(b"a" * 16), BlockHash(b"b" * 16))


def test_accounted_extents_read_as_the_tuple_that_they_stand_for() -> None:
    extents = AccountedExtents(HASHES, 3, 4096)
    plain = (*(BlockExtent(0, 0, 4096, one) for one in HASHES), BlockExtent(0, 0, 4096, BlockHash(b"")))
    assert (len(extents), tuple(extents), extents[-1], extents[0:2]) == (3, plain, plain[2], plain[:2])
    assert extents[2:] == plain[2:]
    with pytest.raises(IndexError):
        extents[3]


@pytest.mark.parametrize("known", [0, 1, 2])
def test_only_hashes_that_an_order_does_not_bring_are_read_from_its_ticket(known: int) -> None:
    extents = AccountedExtents(HASHES, 3, 4096)
    spec = SequenceSpec(SequenceId("s"), (0,) * 10, SamplingParams(), output=(1,), prompt_hashes=HASHES[:known])
    ticket = HandoffTicket("t", ReplicaId("p"), NodeId(""), "", "", 10, tuple(extents))
    assert adoptable_hashes(spec, ticket, 4) == HASHES[known:]
