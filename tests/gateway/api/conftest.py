"""Fixtures of the HTTP surface: one tiny tokenizer and one application for all tests that do not need their own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from serving.gateway.api.settings import ApiSettings, NamespaceKeys, ServedModel, hash_api_key
from serving.gateway.core.kv_hints import HintLimits
from tests.fakes.kv_hints import FakeKvHints
from tests.gateway.api.hinted import BLOCK
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


@pytest.fixture(scope="session")
def hint_system(served: ServedModel) -> tuple[Harness, FakeKvHints]:
    servers = FakeKvHints()
    keys = {name: (hash_api_key(name),) for name in ("acme", "umbrella")}
    namespaces = tuple(NamespaceKeys(name, digests) for name, digests in keys.items())
    limits = HintLimits(block_tokens=BLOCK, ttl_by_namespace={"umbrella": 60.0})
    settings = ApiSettings(namespaces=namespaces, admin_key_hashes=(hash_api_key("root"),), hints=limits)
    return Harness(served, settings, hints=servers), servers


@pytest.fixture
def servers(hint_system: tuple[Harness, FakeKvHints]) -> FakeKvHints:
    hint_system[1].sent.clear()
    hint_system[1].held = {("acme", "s", ""): 4, ("acme", "s", "agent"): 2}
    return hint_system[1]


@pytest.fixture
def app(hint_system: tuple[Harness, FakeKvHints], servers: FakeKvHints) -> FastAPI:
    return hint_system[0].renewed().app


@pytest.fixture
def hinted(hint_system: tuple[Harness, FakeKvHints]) -> Harness:
    return hint_system[0]
