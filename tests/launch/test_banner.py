"""Commands that the banner suggests work."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from serving.config import load_config
from serving.config.engine import EngineConfig
from serving.config.model import ModelConfig
from serving.config.serve import ServeConfig
from serving.launch.banner import banner, computing_line, one_more
from serving.launch.deploying import endpoint

DEPLOY = Path(__file__).parents[2] / "deploy"


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


@pytest.mark.parametrize(("memory_mib", "said"), [(1024, "decode 2"), (1023, "prefill 1"), (767, "decode 1")])
def test_ub_memory_counts_as_npus_do(memory_mib: int, said: str) -> None:
    config = ServeConfig(ModelConfig(Path("somewhere")))
    node = replace(config.cluster.nodes[0], npus=16, ub_memory_mib=memory_mib)
    config = replace(
        config, cluster=replace(config.cluster, nodes=(node,)), prefill=replace(config.prefill, replicas=0)
    )
    assert one_more(config) == said


@pytest.mark.parametrize("file", ["small", "two-nodes", "aggregated", "tenants"])
def test_a_shipped_topology_has_a_pool_to_grow(file: str) -> None:
    config = load_config(DEPLOY / f"{file}.toml")
    (*_, last) = config.pools
    assert one_more(config) == f"{last} {config.pools[last].replicas + 1}"


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
    cluster: Any = SimpleNamespace(
        dashboard_url="http://127.0.0.1:8265",
        token_flag="",
        dashboard_place="",
        logs="/logs",
        session=SimpleNamespace(token="abc"),
    )
    config = ServeConfig(ModelConfig(Path("somewhere")))
    assert "placeholders" not in banner(config, cluster)
    assert "computed by" not in banner(config, cluster)
    assert "\n  computed by      torch\n" in banner(config, cluster, computing="torch")
    for name, accuracy in (
        ("deepseek-r1-shape", "decode: within 5 % inside of batch 8 to 128 per NPU, context 1,024 to 4,352, dies 320"),
        ("storyteller", "decode: not checked: all published rows are of DeepSeek"),
    ):
        simulated = replace(
            config, model=ModelConfig(DEPLOY / "models" / name), engine=EngineConfig(executor="simulated")
        )
        text = banner(simulated, cluster)
        assert "  tokens           placeholders: simulated NPUs" in text
        assert "  steps of         CloudMatrix-Infer itself; open engines need more" in text
        assert f"  accuracy         {accuracy}" in text


def test_an_address_that_only_the_head_reaches_is_not_given_as_this_hosts() -> None:
    url = "http://127.0.0.1:8265"
    cluster: Any = SimpleNamespace(
        dashboard_url=url, token_flag="", logs="", session=SimpleNamespace(token=""), dashboard_place="head (10.77.0.1)"
    )
    lines = [line for line in banner(ServeConfig(ModelConfig(Path("somewhere"))), cluster).splitlines() if url in line]
    assert len(lines) == 3
    assert all(line.endswith("  # on head (10.77.0.1) only") for line in lines), lines


def test_what_computes_is_told_with_the_speed_of_the_slowest() -> None:
    native, torch = "native step, AVX2", "torch on the CPU, several times slower than the native step"
    facts: list[dict[str, Any]] = [{"computes": native, "probe_tokens_per_s": rate} for rate in (1480.4, 1600.0)]
    assert computing_line(facts) == f"{native}, 1,480 tokens/s for one request"
    ranks = [{"computes": native, "probe_tokens_per_s": None}]
    assert computing_line(ranks) == native, "a rank alone has no speed"
    assert computing_line([*facts, {"computes": torch}]) == f"{native}, 1,480 tokens/s for one request; {torch}"
    assert computing_line([{"npus": []}]) == computing_line([]) == "", "simulated ones have a line of their own"
