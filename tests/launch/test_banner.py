"""What a newcomer is told to try has to work."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from serving.config.engine import EngineConfig
from serving.config.model import ModelConfig
from serving.config.serve import ServeConfig
from serving.launch.launch import banner, endpoint, one_more


@pytest.mark.parametrize(
    ("prefill", "decode", "said"), [(1, 1, "prefill 2"), (0, 1, "decode 2"), (2, 1, "decode 1"), (1, 0, "decode 1")]
)
def test_a_pool_that_has_room_for_one_more_is_named(prefill: int, decode: int, said: str) -> None:
    config = ServeConfig(ModelConfig(Path("somewhere")))
    assert (config.cluster.npus, config.prefill.npus_per_instance, config.decode.npus_per_instance) == (8, 2, 4)
    config = replace(
        config, prefill=replace(config.prefill, replicas=prefill), decode=replace(config.decode, replicas=decode)
    )
    assert one_more(config) == said


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://127.0.0.1:8000"),
        ("::1", "http://[::1]:8000"),
    ],
)
def test_the_endpoint_is_an_address_that_others_understand(host: str, url: str) -> None:
    config = ServeConfig(ModelConfig(Path("somewhere")))
    assert endpoint(replace(config, gateway=replace(config.gateway, host=host))) == url


def test_placeholder_tokens_are_announced() -> None:
    cluster: Any = SimpleNamespace(dashboard_url="http://127.0.0.1:8265", session=SimpleNamespace(token="abc"))
    config = ServeConfig(ModelConfig(Path("somewhere")))
    assert "placeholders" not in banner(config, cluster)
    simulated = replace(config, engine=EngineConfig(executor="simulated"))
    assert "  tokens           placeholders: simulated NPUs" in banner(simulated, cluster)
