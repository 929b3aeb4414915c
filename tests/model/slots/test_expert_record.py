"""Records of experts: the stored expert is restored, and no other data is accepted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import ExpertError
from serving.model.slots.expert_record import (
    HEAD_BYTES,
    PackedExpert,
    clear_record,
    copy_record,
    open_record,
    write_record,
)
from tests.model.slots.experts import an_expert, contents, packed_experts

PANELS = 7


def memory(nbytes: int) -> memoryview:
    """Memory with previous contents."""
    return np.full(nbytes, 0xA5, np.uint8).data


def record_of(expert: PackedExpert, layer: int = 3, number: int = 5, spare: int = 0) -> memoryview:
    """An expert's record in memory that may be slightly longer."""
    record = memory(expert.record_bytes + spare)
    write_record(record, layer, number, expert, PANELS)
    return record


@given(packed_experts(), st.integers(0, 200))
def test_what_was_written_comes_out_and_can_be_passed_on(expert: PackedExpert, spare: int) -> None:
    record = record_of(expert, spare=spare)
    first, second = memory(expert.record_bytes), memory(expert.record_bytes)
    copy_record(first, record, 3, 5, PANELS)
    copy_record(second, first, 3, 5, PANELS)
    for copy in (first, second):
        assert contents(open_record(copy, 3, 5, PANELS)) == contents(expert)


@given(packed_experts(), st.data())
def test_a_record_with_any_bit_turned_is_refused(expert: PackedExpert, data: st.DataObject) -> None:
    record = record_of(expert)
    at = data.draw(st.integers(0, len(record) - 1))
    record[at] ^= 1 << data.draw(st.integers(0, 7))
    target = memory(len(record))
    with pytest.raises(ExpertError, match="layer 3, expert 5"):
        copy_record(target, record, 3, 5, PANELS)
    with pytest.raises(ExpertError, match="holds no expert"):
        open_record(target, 3, 5, PANELS)


@given(packed_experts(), st.integers(1, 400))
def test_a_record_that_is_too_long_is_refused(expert: PackedExpert, missing: int) -> None:
    record = record_of(expert)
    short = memory(max(HEAD_BYTES, len(record) - missing))
    with pytest.raises(ExpertError, match="do not fit"):
        write_record(short, 3, 5, expert, PANELS)
    with pytest.raises(ExpertError, match="do not fit"):
        copy_record(short, record, 3, 5, PANELS)
    with pytest.raises(ExpertError, match=r"in \d+"):
        open_record(record[: len(short)], 3, 5, PANELS)


@pytest.mark.parametrize(
    ("layer", "number", "panels", "says"),
    [
        (2, 5, PANELS, "expert 5 of layer 3"),
        (3, 4, PANELS, "expert 5 of layer 3"),
        (3, 5, PANELS + 1, "another version"),
    ],
)
def test_another_experts_record_is_refused(layer: int, number: int, panels: int, says: str) -> None:
    with pytest.raises(ExpertError, match=says):
        open_record(record_of(an_expert()), layer, number, panels)


def test_a_record_that_is_being_written_or_changes_meanwhile_is_none() -> None:
    record = record_of(an_expert())
    seen = list[str]()

    def look(nbytes: int) -> None:
        with pytest.raises(ExpertError, match="being written"):
            open_record(record, 3, 5, PANELS)
        seen.append(f"{nbytes}")

    write_record(record, 3, 6, an_expert(), PANELS, look)
    assert len(seen) == 3
    clear_record(record)
    with pytest.raises(ExpertError, match="holds no expert"):
        open_record(record, 3, 6, PANELS)


def test_bytes_that_change_while_they_are_copied_are_found() -> None:
    expert = an_expert()
    record, target = record_of(expert), memory(expert.record_bytes)

    def spoil(nbytes: int) -> None:
        target[HEAD_BYTES] ^= 1

    with pytest.raises(ExpertError, match="changed while"):
        write_record(target, 3, 5, expert, PANELS, spoil)
    assert bytes(target[:HEAD_BYTES]) == bytes(HEAD_BYTES)
    record[-100] ^= 1
    with pytest.raises(ExpertError, match="checksum"):
        copy_record(target, record, 3, 5, PANELS)
