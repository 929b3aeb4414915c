"""Reading a file: defaults, and one precise line for each kind of mistake."""

import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.config import PoolConfig, load_config
from serving.errors import ConfigError
from tests.config.toml_file import MODEL, load, write


def test_a_file_that_names_only_the_model_gets_every_default(tmp_path: Path) -> None:
    config = load(tmp_path, "")
    assert config.model.path == (tmp_path / "checkpoint").resolve()
    assert config.model.name == "checkpoint"
    assert (config.gateway.host, config.gateway.port) == ("127.0.0.1", 8000)
    assert [(node.name, node.npus) for node in config.cluster.nodes] == [("node-0", 8)]
    assert list(config.pools) == ["prefill", "decode"]
    assert config.instances == 2


def test_keys_of_the_file_win_and_the_others_keep_the_section_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, "[decode]\nmax_sequences = 5\n[gateway]\nrequest_timeout_s = 30\n")
    assert config.decode == PoolConfig(npus_per_instance=4, ub_memory_mib=512, max_sequences=5)
    assert config.gateway.request_timeout_s == 30.0
    assert isinstance(config.gateway.request_timeout_s, float)


def test_model_path_is_relative_to_the_file_not_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deploy").mkdir()
    file = write(tmp_path / "deploy", "", model='[model]\npath = "../weights"\nname = "tales"\n')
    monkeypatch.chdir("/")
    assert load_config(file).model.path == (tmp_path / "weights").resolve()
    assert load_config(file).model.name == "tales"


def test_nodes_keep_their_order_and_get_names(tmp_path: Path) -> None:
    config = load(
        tmp_path, '[[cluster.nodes]]\nnpus = 4\n[[cluster.nodes]]\nname = "east"\n[[cluster.nodes]]\ncpus = 2\n'
    )
    assert [(n.name, n.npus, n.cpus) for n in config.cluster.nodes] == [
        ("node-0", 4, 0),
        ("east", 8, 0),
        ("node-2", 8, 2),
    ]


def test_aggregated_mode_starts_one_pool(tmp_path: Path) -> None:
    config = load(tmp_path, '[serving]\nmode = "aggregated"\n[aggregated]\nreplicas = 2\n')
    assert list(config.pools) == ["aggregated"]
    assert config.instances == 2


def test_threads_are_shared_out_unless_given(tmp_path: Path) -> None:
    config = load(tmp_path, "")
    assert [config.threads_per_instance(cores) for cores in (1, 2, 7, 64)] == [1, 1, 3, 31]
    assert [config.threads_per_instance(7, share) for share in (1.0, 0.75, 0.5, 1 / 3)] == [3, 3, 6, 6], "by machine"
    assert load(tmp_path, "[engine]\nthreads = 3\n").threads_per_instance(64) == 3


def test_the_configuration_cannot_be_changed_and_hides_its_keys(tmp_path: Path) -> None:
    config = load(tmp_path, '[gateway]\napi_keys = ["sk-secret"]\n')
    assert config.gateway.api_keys == ("sk-secret",)
    assert "sk-secret" not in repr(config)
    with pytest.raises(FrozenInstanceError):
        config.gateway.port = 1  # type: ignore[misc]


MISTAKES = {
    "unknown key": ("[gateway]\nprot = 1", "[gateway] unknown key `prot`; did you mean `port`?"),
    "unknown key, nothing near": ("[serving]\nzzz = 1", "[serving] unknown key `zzz`; known are `mode`"),
    "unknown section": ("[gatway]\nport = 1", "site.toml: unknown section [gatway]; did you mean [gateway]?"),
    "unknown key of a node": (
        "[[cluster.nodes]]\nnpu = 1",
        "[cluster] nodes[0] unknown key `npu`; did you mean `npus`?",
    ),
    "text for a number": ('[gateway]\nport = "8000"', '[gateway] port = "8000" must be a whole number'),
    "boolean for a number": ("[decode]\nreplicas = true", "[decode] replicas = true must be a whole number"),
    "boolean for a float": ("[engine]\nhandoff_lease_s = true", "handoff_lease_s = true must be a number"),
    "float for a whole number": ("[decode]\nreplicas = 1.5", "[decode] replicas = 1.5 must be a whole number"),
    "number for a text": ("[gateway]\nhost = 1", "[gateway] host = 1 must be text in quotes"),
    "number for a boolean": ("[engine]\nprefix_reuse = 1", "[engine] prefix_reuse = 1 must be true or false"),
    "text for a list": ('[gateway]\napi_keys = "k"', '[gateway] api_keys = "k" must be a list of texts in quotes'),
    "list of numbers": ("[gateway]\napi_keys = [1]", "[gateway] api_keys = [1] must be a list of texts in quotes"),
    "empty API key": ('[gateway]\napi_keys = [""]', "[gateway] api_keys holds an empty string: remove it"),
    "empty text": ('[gateway]\nhost = ""', "[gateway] host must not be empty"),
    "above the range": ("[gateway]\nport = 70000", "[gateway] port = 70000 must be between 1 and 65535"),
    "below the range": ("[decode]\nreplicas = -1", "[decode] replicas = -1 must be between 0 and 384"),
    "below an open range": ("[decode]\nub_memory_mib = 0", "[decode] ub_memory_mib = 0 must be at least 1"),
    "not a number": ("[hardware]\nworkspace_share = nan", "workspace_share = nan must be between 0 and 0.9"),
    "not a choice": (
        '[serving]\nmode = "hybrid"',
        '[serving] mode = "hybrid" must be one of "disaggregated", "aggregated"',
    ),
    "no section": ("[cluster]\nnodes = 3", "[cluster] nodes must be one or more [[cluster.nodes]] sections"),
    "no nodes": ("[cluster]\nnodes = []", "[cluster] nodes must be one or more [[cluster.nodes]] sections"),
    "single brackets": ("[cluster.nodes]\nnpus = 8", "[cluster] nodes must be one or more [[cluster.nodes]] sections"),
    "node that is no section": ("[cluster]\nnodes = [8]", "[cluster] nodes[0] must be a section of keys, got 8"),
    "namespaces that are no list": (
        "[namespaces]\nquota_mib = 1",
        "[[namespaces]] must be one or more [[namespaces]] sections",
    ),
    "unknown key of a namespace": (
        '[[namespaces]]\nname = "a"\nqota_mib = 1',
        "[[namespaces]][0] unknown key `qota_mib`; did you mean `quota_mib`?",
    ),
    "namespace without a name": ("[[namespaces]]\nquota_mib = 1", "[[namespaces]][0] name is missing: name in metrics"),
    "not TOML": ("[gateway", "site.toml is not valid TOML: "),
}


@pytest.mark.parametrize(("text", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_one_line_with_file_section_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load(tmp_path, text)
    assert str(tmp_path / "site.toml") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("", "[model] path is missing: Hugging Face checkpoint folder"),
        ('[model]\npath = ""\n', '[model] path = "" must be a path in quotes'),
        ("model = 3\n", "[model] must be a section of keys, got 3"),
    ],
)
def test_the_model_path_is_required(tmp_path: Path, model: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load(tmp_path, "", model=model)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no configuration file .*none\.toml: name one with --config"):
        load_config(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "latin.toml")


toml_values = st.one_of(
    st.booleans().map(lambda b: str(b).lower()),
    st.integers(-(2**62), 2**62).map(str),
    st.sampled_from(["1.5", "nan", "-inf", '""', '"8"', "[]", "[1, [2]]", "{}", "{ a = 1 }", "2026-01-01", "['']"]),
)
section_names = st.sampled_from(
    ["gateway", "cluster", "hardware", "engine", "serving", "decode", "kvcache", "namespaces", "colour"]
)
key_names = st.sampled_from(
    ["port", "host", "api_keys", "nodes", "replicas", "mode", "threads", "hbm_per_die_mib", "block_tokens", "x"]
)


@settings(max_examples=25)
@given(section_names, key_names, toml_values)
def test_no_value_anywhere_causes_another_error(
    tmp_path_factory: pytest.TempPathFactory, section: str, name: str, value: str
) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzz.toml"
    file.write_text(f"{MODEL}[{section}]\n{name} = {value}\n", encoding="utf-8")
    try:
        read = getattr(load_config(file), section)
    except ConfigError:
        return
    assert hasattr(read, name)
