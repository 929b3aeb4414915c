"""Checked copies: right bytes, right checksum, other threads run."""

import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from hardware.errors import UbRangeError
from hardware.ub.copy import CHUNK_BYTES, Hashed, checksum, copy_checked
from hardware.units import MIB


@given(data=st.binary(max_size=3000), chunk=st.integers(1, 1000), hashed=st.sampled_from(Hashed))
def test_bytes_and_checksum_are_those_of_the_source(data: bytes, chunk: int, hashed: Hashed) -> None:
    target = bytearray(len(data))
    assert copy_checked(memoryview(target), data, chunk, hashed) == checksum(data) == xxhash.xxh3_64_intdigest(data)
    assert bytes(target) == data


@given(data=st.binary(min_size=1, max_size=500), place=st.integers(min_value=0), bit=st.integers(0, 7))
def test_one_flipped_bit_changes_the_checksum(data: bytes, place: int, bit: int) -> None:
    spoilt = bytearray(data)
    spoilt[place % len(data)] ^= 1 << bit
    assert checksum(spoilt) != checksum(data)


def test_arrays_of_any_type_and_size_are_bytes() -> None:
    source = np.arange(100, dtype=np.float32).reshape(10, 10)
    target = np.zeros((10, 10), np.float32)
    assert copy_checked(target.data.cast("B"), source.data.cast("B")) == checksum(source.tobytes())
    assert np.array_equal(source, target)
    long = np.random.default_rng(1).integers(0, 256, 2 * CHUNK_BYTES + 5, np.uint8)  # more than one chunk
    for hashed in Hashed:
        arrived = np.zeros_like(long)
        assert copy_checked(arrived, long, hashed=hashed) == checksum(long)
        assert np.array_equal(long, arrived)


def test_the_target_checksum_is_of_what_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty_copy(dst: np.ndarray, src: np.ndarray) -> None:
        dst[:] = src
        dst[0] ^= 1  # a bit flips in transfer

    monkeypatch.setattr(np, "copyto", faulty_copy)
    source = b"key and value"
    target = bytearray(len(source))
    assert copy_checked(memoryview(target), source, hashed=Hashed.SOURCE) == checksum(source)
    assert copy_checked(memoryview(target), source, hashed=Hashed.TARGET) == checksum(target) != checksum(source)


def test_copies_that_cannot_be() -> None:
    with pytest.raises(UbRangeError, match="2 bytes into 3"):
        copy_checked(memoryview(bytearray(3)), b"ab")
    with pytest.raises(UbRangeError, match="writable: False"):
        copy_checked(memoryview(b"xy"), b"ab")
    with pytest.raises(UbRangeError, match="chunks of 0"):
        copy_checked(memoryview(bytearray(2)), b"ab", chunk_bytes=0)
    with pytest.raises(UbRangeError, match="not contiguous"):
        checksum(memoryview(b"abcdef")[::2])


@pytest.fixture
def no_forced_switch() -> Iterator[None]:
    """A thread runs only if the other one releases the interpreter's lock voluntarily."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    yield
    sys.setswitchinterval(usual)


DATA = np.zeros(32 * MIB, np.uint8)


@pytest.mark.usefixtures("no_forced_switch")
@pytest.mark.parametrize(
    "work",
    [lambda: checksum(DATA), lambda: copy_checked(np.empty_like(DATA), DATA)],
    ids=["checksum", "copy"],
)
def test_the_interpreter_lock_is_released(work: Callable[[], int]) -> None:
    ticks = 0
    stop = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not stop.wait(0.0005):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    deadline = time.monotonic() + 60
    while ticks < 3 and time.monotonic() < deadline:
        work()
    ran = ticks
    stop.set()
    thread.join()
    assert ran >= 3


def test_each_chunk_is_told_and_a_copy_can_be_given_up() -> None:
    source, target, told = bytes(range(256)) * 4, bytearray(1024), list[int]()
    assert copy_checked(memoryview(target), source, 300, pace=told.append) == checksum(source)
    assert told == [300, 300, 300, 124]

    def stop(nbytes: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        copy_checked(memoryview(target), source, 300, pace=stop)
