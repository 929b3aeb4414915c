"""The eight-step protocol over every order of its stores, with either end giving up at any point; each error is
found.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.errors import SpecError, UbChannelError
from hardware.ub.eight_step import COUNT_BITS, LaneTransfer, LaneWord
from tests.hardware.ub.eight_step_model import Mistake, ProtocolError, Setting, search


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_every_order_brings_every_event_over(slots: int) -> None:
    """Fewer chunks than the ring holds, as many, more, and none."""
    _, endings = search(Setting((4, 2, 0, 1), slots))
    assert endings == {frozenset({0, 1, 2, 3})}


@pytest.mark.parametrize("slots", [1, 2])
def test_whoever_gives_up_nothing_wrong_is_received(slots: int) -> None:
    states, endings = search(Setting((2, 3, 1), slots, give_up=True))
    assert frozenset({0, 1, 2}) in endings
    assert frozenset() in endings
    assert states > 1000


@pytest.mark.parametrize(
    ("mistake", "setting", "seen"),
    [
        (Mistake.WORD_BEFORE_CHUNK, {}, "came over as"),
        (Mistake.NO_CREDIT, {}, "came over as"),
        (Mistake.TAKEN_BEFORE_COPY, {}, "came over as|is told"),
        (Mistake.NO_FIRST_WORD, {"give_up": True, "chunks": (2, 2)}, "came over as|is told"),
        (Mistake.NO_SECOND_LOOK, {"give_up": True, "chunks": (2, 2)}, "came over as|is told"),
    ],
)
def test_each_mistake_is_found(mistake: Mistake, setting: dict, seen: str) -> None:
    with pytest.raises(ProtocolError, match=seen):
        search(Setting(mistake=mistake, **setting))


@given(st.integers(1, (1 << 14) - 1), st.integers(0, (1 << 24) - 1), st.integers(0, (1 << COUNT_BITS) - 1))
def test_a_word_says_what_was_put_into_it(epoch: int, event: int, count: int) -> None:
    word = LaneWord(epoch, event, count)
    assert LaneWord.unpack(word.pack()) == word
    assert 0 < word.pack() < 1 << 64


def test_words_of_other_transfers() -> None:
    transfer = LaneTransfer(3, 7, 4, 2)
    assert transfer.count_in(0) is None
    assert transfer.count_in(LaneWord(2, 9, 4).pack()) is None
    assert transfer.count_in(LaneWord(3, 6, 4).pack()) is None
    assert transfer.count_in(LaneWord(3, 7, 4).pack()) == 4
    for word, ending in ((LaneWord(4, 1, 0), "epoch changed"), (LaneWord(3, 8, 0), "mismatch")):
        with pytest.raises(UbChannelError) as error:
            transfer.count_in(word.pack())
        assert error.value.ending == ending
    with pytest.raises(UbChannelError, match="5 chunks"):
        transfer.count_in(LaneWord(3, 7, 5).pack())


@pytest.mark.parametrize("change", [{"epoch": 0}, {"epoch": 1 << 14}, {"event": 1 << 24}, {"slots": 0}])
def test_a_transfer_that_no_word_can_name_is_refused(change: dict) -> None:
    with pytest.raises(SpecError):
        LaneTransfer(**{"epoch": 1, "event": 1, "chunks": 1, "slots": 1} | change)
