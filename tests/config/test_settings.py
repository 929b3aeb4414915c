"""`--model` and `--set`: values that the command line puts into the file before validation."""

from dataclasses import replace
from pathlib import Path

import pytest

from serving.config import PoolConfig, ServeConfig, load_config
from serving.errors import ConfigError
from tests.config.toml_file import checkpoint, write


def loaded(folder: Path, text: str, *settings: str) -> ServeConfig:
    return load_config(write(folder, text), settings=settings)


def test_a_setting_wins_over_the_file_and_leaves_the_rest(tmp_path: Path) -> None:
    config = loaded(tmp_path, "[engine]\nblock_tokens = 32\ndraft_tokens = 1\n", "engine.draft_tokens=3")
    assert (config.engine.block_tokens, config.engine.draft_tokens) == (32, 3)


def test_the_last_of_two_settings_holds(tmp_path: Path) -> None:
    assert loaded(tmp_path, "", "slo.ttft_s=1", "slo.ttft_s=2.5").slo.ttft_s == 2.5


def test_a_section_that_the_file_does_not_have(tmp_path: Path) -> None:
    assert loaded(tmp_path, "", "kvcache.replicas = 1").kvcache.replicas == 1


@pytest.mark.parametrize("text", ["torch", '"torch"'])
def test_text_needs_no_quotes(tmp_path: Path, text: str) -> None:
    assert loaded(tmp_path, "", f"engine.executor={text}").engine.executor == "torch"


def test_lists_and_truths_are_written_as_in_the_file(tmp_path: Path) -> None:
    config = loaded(tmp_path, "", 'gateway.api_keys=["a", "b"]', "cluster.restart_nodes=false")
    assert (config.gateway.api_keys, config.cluster.restart_nodes) == (("a", "b"), False)


def test_nodes_are_a_list_of_tables(tmp_path: Path) -> None:
    config = loaded(tmp_path, "", "cluster.nodes=[{npus = 16, ub_memory_mib = 4096}]")
    assert [(node.name, node.npus) for node in config.cluster.nodes] == [("node-0", 16)]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("engine", r"^--set engine: must be SECTION\.KEY=VALUE, for example gateway\.replicas=2$"),
        ("engine=3", r"must be SECTION\.KEY=VALUE"),
        ("engine.=3", r"must be SECTION\.KEY=VALUE"),
        (
            "engin.draft_tokens=3",
            r"^--set engin\.draft_tokens=3: unknown section \[engin\]; did you mean \[engine\]\?$",
        ),
        ("engine.draft_token=3", r"^--set \[engine\] unknown key `draft_token`; did you mean `draft_tokens`\?$"),
        ("engine.draft_tokens=4", r"^--set \[engine\] draft_tokens = 4 must be between 0 and 3$"),
        ("engine.draft_tokens=", r'^--set \[engine\] draft_tokens = "" must be a whole number$'),
        ("namespaces.name=acme", r"^--set namespaces\.name=acme: \[\[namespaces\]\] is a list of sections"),
    ],
)
def test_a_mistake_is_told_of_the_setting(tmp_path: Path, setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loaded(tmp_path, "", setting)


def test_settings_must_fit_the_rest_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is also \[cluster\] dashboard_port"):
        loaded(tmp_path, "[gateway]\nport = 9000\n", "cluster.dashboard_port=9000")


def test_a_section_that_is_none_stays_the_files_mistake(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text('engine = 3\n[model]\npath = "checkpoint"\n')
    with pytest.raises(ConfigError, match=r"site\.toml: \[engine\] must be a section of keys, got 3"):
        load_config(file, settings=["engine.draft_tokens=3"])


def test_another_model_comes_with_nothing_of_the_files_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = checkpoint(tmp_path, "other")
    of_the_file = (
        '[model]\npath = "missing"\nname = "tales"\ndtype = "float32"\ntokenizer = "words"\nversion = "7"\n'
        'reasoning = true\ndevice = "cpu"\nshort_weights = "off"\n'
    )
    monkeypatch.chdir(tmp_path)
    model = load_config(write(tmp_path, "", model=of_the_file), model="other").model
    assert (model.path, model.name, model.dtype, model.version) == (other.resolve(), "other", "auto", "")
    assert (model.tokenizer_folder, model.reasoning) == (other.resolve(), False)
    assert (model.device, model.short_weights) == ("cpu", "off")


def test_settings_say_more_of_another_model(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, ""), model=checkpoint(tmp_path, "other"), settings=["model.dtype=float32"])
    assert (config.model.name, config.model.dtype) == ("other", "float32")


@pytest.mark.parametrize(("ep", "key", "most"), [(2, 0, 8), (6, 0, 12), (40, 0, 64), (2, 3, 3), (4, 3, 4)])
def test_how_far_a_group_can_grow(tmp_path: Path, ep: int, key: int, most: int) -> None:
    assert loaded(tmp_path, "", f"experts.most_ranks={key}").experts.most_ranks_of(ep) == most


@pytest.mark.parametrize(("sides", "key", "most"), [((2, 1), 0, 8), ((20, 3), 0, 32), ((2, 6), 5, 6)])
def test_how_far_each_side_of_a_group_can_grow(tmp_path: Path, sides: tuple[int, int], key: int, most: int) -> None:
    assert loaded(tmp_path, "", f"experts.most_ranks={key}").experts.most_ranks_of(*sides) == most


def test_expert_ranks_take_npus_and_memory_too() -> None:
    pool = PoolConfig(npus_per_instance=2, ub_memory_mib=100, attention_ranks=2, expert_ranks=3)
    assert pool.resources_of_group() == (10, 500)
    other = replace(pool, expert_npus=1, expert_ub_memory_mib=10)
    assert other.resources_of_group(spares=1) == (2 * 3 + 4, 340)
