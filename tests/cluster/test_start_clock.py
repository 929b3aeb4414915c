"""Phases of a start, as a replica measures them."""

import os
import subprocess
import sys
import time

import pytest

from serving.cluster.start_clock import UNPICKLED_S, StartClock, own_age_s


def test_the_process_lasts_until_imports_begin() -> None:
    clock = StartClock(importing_since=100.0, imported_at=101.5, now=101.6, age_s=2.1)
    assert clock.serves(now=103.6) == pytest.approx({"process": 0.5, "imports": 1.5, "weights": 2.0})


def test_a_process_that_had_the_code_already_took_no_time_for_it() -> None:
    clock = StartClock(importing_since=100.0, imported_at=101.5, now=101.6 + UNPICKLED_S, age_s=50.0)
    assert clock.serves(now=108.6) == pytest.approx({"process": 0.0, "imports": 0.0, "weights": 2.0})


def test_a_process_forked_with_the_code_imported_nothing() -> None:
    clock = StartClock(importing_since=100.0, imported_at=101.5, now=160.0, age_s=0.3)
    assert clock.serves(now=160.5) == pytest.approx({"process": 0.3, "imports": 0.0, "weights": 0.5})
    idle = StartClock(importing_since=100.0, imported_at=101.5, now=160.0, age_s=50.0)
    assert idle.serves(now=160.5)["process"] == 0.0


def test_a_process_knows_its_age() -> None:
    code = (
        "import time; time.sleep(0.1); from serving.cluster.start_clock import own_age_s; print(own_age_s());"
        " from serving.cluster.first_import import IMPORTING_SINCE; print(time.monotonic() - IMPORTING_SINCE)"
    )
    begun = time.monotonic()
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert 0.1 <= float(said[0]) <= time.monotonic() - begun + 2 / os.sysconf("SC_CLK_TCK")
    assert 0 <= float(said[1]) < 30
    assert own_age_s() > 0
