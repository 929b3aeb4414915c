"""Carriers between hosts: every order of frames in a model, and threads over sockets, plainly and under sanitizers."""

from pathlib import Path

import pytest

from tests.cases.nightly import mostly_nightly
from tests.hardware.ub.carrier_model import CarrierError, CarrierMistake, CarrierSetting, search
from tests.hardware.ub.exchange_programs import program, run

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("raises", [False, True])
def test_no_order_of_frames_breaks_a_session(cut: bool, raises: bool) -> None:
    states, endings = search(CarrierSetting(cut, raises))
    assert states > 10
    assert endings == {1} | ({2} if raises else set()) | ({3} if cut else set())


@pytest.mark.parametrize("mistake", CarrierMistake)
def test_every_mistake_is_found(mistake: CarrierMistake) -> None:
    with pytest.raises(CarrierError):
        search(CarrierSetting(mistake=mistake))


@pytest.fixture(scope="module")
def folder(pytestconfig: pytest.Config) -> Path:
    return pytestconfig.cache.mkdir("exchange")


@pytest.mark.parametrize(
    "sanitizer",
    mostly_nightly(
        ["plain", "address", "thread"],
        ["plain", "thread"],
        "tests/hardware/ub/test_carrier.py::test_ranks_of_two_hosts",
    ),
)
@pytest.mark.parametrize("what", ["exact", "loss", "refusals"])
def test_ranks_of_two_hosts(folder: Path, sanitizer: str, what: str) -> None:
    run([program("carrier_selftest", folder, sanitizer), what, *([20] if what == "exact" else [])])
