"""Fixtures of the HTTP surface: one tiny tokenizer and one application for all tests that do not need their own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serving.gateway.api.settings import ApiSettings, ServedModel, hash_api_key
from tests.gateway.api.support import MAX_MODEL_LEN, Harness, running_server, write_model_folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def served(model_folder: Path) -> ServedModel:
    return ServedModel.from_folder(model_folder, names=("tiny", "org/tiny"), max_model_len=MAX_MODEL_LEN, created=7)


@pytest.fixture(scope="session")
def application(served: ServedModel) -> Harness:
    """One application for many tests, since building one takes longer than most tests."""
    return Harness(served)


@pytest.fixture
def harness(application: Harness) -> Harness:
    """A shared application without pending requests; its metrics and its log persist between tests."""
    return application.renewed()


@pytest.fixture
def refusing(application: Harness) -> Harness:
    """The same, for tests whose requests are refused and leave no state."""
    application.backend.jobs.clear()
    return application


@pytest.fixture
def fresh(served: ServedModel) -> Harness:
    """A new application, for tests of its state."""
    return Harness(served)


@pytest.fixture
def make_harness(served: ServedModel) -> Callable[[ApiSettings], Harness]:
    return lambda settings: Harness(served, settings)


@pytest.fixture(scope="module")
def shared(served: ServedModel) -> Iterator[tuple[Harness, str]]:
    """An application behind uvicorn for real clients, with the API key `key`."""
    harness = Harness(served, ApiSettings(api_key_hashes=(hash_api_key("key"),)))
    with running_server(harness.app) as url:
        yield harness, url
