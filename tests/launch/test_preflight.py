"""Checks of the KV-cache pool before any process starts."""

import json
import re
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from hardware.errors import SpecError
from hardware.units import GIB, MIB
from serving.config import EngineConfig, GatewayConfig, KvCacheConfig, ModelConfig, ServeConfig
from serving.config.cluster import ClusterConfig, HardwareConfig
from serving.config.kv_events import KvEventsConfig
from serving.config.model import DType
from serving.config.simulation import Executor
from serving.errors import ConfigError, ModelError
from serving.launch import machine
from serving.launch.machine import FreeMemory, compiler_line, free_memory, tight_lines, warn_of_machine
from serving.launch.preflight import check_before_fetch, preflight
from serving.model.size import weight_bytes
from tests.e2e.server import free_port
from tests.kvpool.redis_process import RedisProcess, needs_redis
from tests.model.random_checkpoint import Dtype, write_random_checkpoint
from tests.model.shapes import SPARSE

STORYTELLER = Path(__file__).parents[2] / "deploy" / "models" / "storyteller"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("made") / "model")


@pytest.fixture
def config(tmp_path: Path, checkpoint: Path) -> ServeConfig:
    return ServeConfig(
        ModelConfig(path=shutil.copytree(checkpoint, tmp_path / "model")),
        gateway=GatewayConfig(port=free_port()),
        cluster=ClusterConfig(dashboard_port=0),
        kvcache=KvCacheConfig(replicas=1, ssd_mib=1, ssd_path=str(tmp_path / "deep" / "ssd")),
    )


def test_the_disk_folder_is_made(config: ServeConfig) -> None:
    preflight(config)
    assert Path(config.kvcache.ssd_path).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["endpoint", "replay"])
def test_the_first_port_of_events_must_be_free(config: ServeConfig, name: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        events = replace(KvEventsConfig(enabled=True), **{name: f"tcp://127.0.0.1:{port}"})  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=rf"^port {port} on 127.0.0.1 is in use: .* set \[kv_events\] {name}"):
            preflight(replace(config, kv_events=events))
        preflight(replace(config, kv_events=events), own_ray=False)


def test_events_need_their_library(config: ServeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.launch.preflight.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"^\[kv_events\] needs pyzmq: pip install '\.\[events\]'$"):
        preflight(replace(config, kv_events=KvEventsConfig(enabled=True)))


def test_a_folder_that_cannot_be(config: ServeConfig, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    wrong = replace(config, kvcache=replace(config.kvcache, ssd_path=str(tmp_path / "file" / "ssd")))
    with pytest.raises(ConfigError, match=r"cannot be created \(Not a directory\): change \[kvcache\] ssd_path"):
        preflight(wrong)


def test_a_block_larger_than_a_server(config: ServeConfig) -> None:
    wrong = replace(config, engine=EngineConfig(block_tokens=4096), kvcache=KvCacheConfig(replicas=1, ub_memory_mib=1))
    with pytest.raises(
        ConfigError, match=r"one KV block of this model takes \d+ bytes, more than a memory server of 1"
    ):
        preflight(wrong)


def test_weights_larger_than_an_instance(config: ServeConfig) -> None:
    scarce = HardwareConfig(hbm_per_die_mib=1, workspace_share=0.9)
    with pytest.raises(
        ConfigError, match=r"^the weights of model take 0.000977 GiB.* prefill pool has 4 dies of 0.000977 GiB"
    ) as told:
        preflight(replace(config, hardware=scarce))
    enough = re.search(
        r"with dies of ([\d.]+) GiB they fit: add --set hardware\.hbm_per_die_mib=(\d+), or raise \[prefill\]",
        str(told.value),
    )
    assert enough is not None
    assert float(enough[1]) * 1024 == int(enough[2])
    preflight(replace(config, hardware=replace(scarce, hbm_per_die_mib=int(enough[2]))))


def test_weights_larger_than_the_machine(config: ServeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "machine_bytes", lambda: 1000)
    with pytest.raises(
        ConfigError, match=r"of model take .* GiB, and this machine has .* GiB .* with dies of [\d.]+ GiB"
    ):
        preflight(config)
    preflight(config, own_ray=False)


@pytest.mark.parametrize(("stored", "dtype"), [("float32", "auto"), ("bfloat16", "auto"), ("float32", "bfloat16")])
def test_a_model_is_refused_before_its_weights_are_fetched(tmp_path: Path, stored: Dtype, dtype: DType) -> None:
    """Refused for the minimum size only: a model that passes `preflight` passes this check."""
    folder = write_random_checkpoint(tmp_path / "model", dtype=stored)
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    needed = weight_bytes(folder, 2 if "bfloat16" in (stored, dtype) else 4)
    model = ModelConfig(path=Path("org/name"), name="org/name", dtype=dtype)
    config = ServeConfig(model, hardware=HardwareConfig(hbm_per_die_mib=1, workspace_share=0.9))
    share = 1 - 1.3 * needed / config.prefill.dies_per_instance / MIB
    check_before_fetch(replace(config, hardware=replace(config.hardware, workspace_share=share)), folder, size)
    for there in (None, folder):
        with pytest.raises(ConfigError, match=r"weights of org/name take .* with dies of .* GiB they fit"):
            check_before_fetch(replace(config, model=replace(model, dtype="auto")), there, size)


def test_a_tokenizer_of_more_tokens_than_the_model_has(config: ServeConfig, tmp_path: Path) -> None:
    words = write_random_checkpoint(tmp_path / "words", vocab_size=400)
    own = replace(config, model=replace(config.model, tokenizer=str(words)))
    line = r"^\[model\] tokenizer: .*words/tokenizer\.json has token 399, and the model has 320 embedding rows"
    with pytest.raises(ModelError, match=line):
        preflight(own)
    with pytest.raises(ModelError, match=line):
        check_before_fetch(own, config.model.path, 1)
    less = write_random_checkpoint(tmp_path / "more", vocab_size=400)
    preflight(replace(config, model=ModelConfig(path=less, tokenizer=str(config.model.path))))


def test_weights_count_in_the_type_that_they_are_loaded_in(tmp_path: Path, config: ServeConfig) -> None:
    """Stored in bfloat16, they just fit, and as float32 they do not."""
    model = write_random_checkpoint(tmp_path / "short", dtype="bfloat16")
    share = 1 - 1.3 * weight_bytes(model, 2) / config.prefill.dies_per_instance / MIB
    own = replace(
        config, model=ModelConfig(path=model), hardware=HardwareConfig(hbm_per_die_mib=1, workspace_share=share)
    )
    preflight(own)
    with pytest.raises(ConfigError, match="the weights of short take"):
        preflight(replace(own, model=ModelConfig(path=model, dtype="float32")))


def test_weights_that_cannot_be_read(config: ServeConfig) -> None:
    next(config.model.path.glob("*.safetensors")).write_bytes(b"nothing")
    with pytest.raises(ModelError, match=r"a file of .*model cannot be read \(.*\): fetch it again"):
        preflight(config)


def test_contexts_end_where_attention_is_not_computed(
    config: ServeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_random_checkpoint(tmp_path / "sparse", **SPARSE)
    config = replace(config, model=ModelConfig(path=folder), engine=EngineConfig(executor="native"))
    for asked, longest in ((0, 64), (64, 64), (20, 20)):
        caplog.clear()
        preflight(replace(config, engine=replace(config.engine, max_model_len=asked)))
        assert caplog.messages == [
            f"contexts are limited to {longest} tokens: beyond 64 attention reads chosen tokens only in a model of"
            ' deepseek_v32, which this server does not compute; [engine] executor = "torch" does'
        ]
    wrong = replace(config, engine=replace(config.engine, max_model_len=65))
    line = r"^\[engine\] max_model_len = 65: beyond 64 .*; set it to 64 or less, or \[engine\] executor = .torch.$"
    with pytest.raises(ConfigError, match=line):
        preflight(wrong)
    with pytest.raises(ConfigError, match=line):
        check_before_fetch(wrong, folder, 1)


def test_who_computes_sparse_attention_is_told(
    config: ServeConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_random_checkpoint(tmp_path / "sparse", **SPARSE)
    config = replace(config, model=ModelConfig(path=folder))
    told = "torch computes this model, slower .* max_model_len = 64 lets the native step compute it"
    cases: list[tuple[Executor, int, int]] = [("auto", 0, 1), ("auto", 64, 0), ("torch", 0, 0)]
    for executor, asked, lines in cases:
        caplog.clear()
        preflight(replace(config, engine=EngineConfig(executor=executor, max_model_len=asked)))
        assert len(caplog.messages) == lines, (executor, asked)
        assert all(re.match(told, line) for line in caplog.messages)


def test_simulated_drafts_of_a_model_without_a_module(config: ServeConfig) -> None:
    simulated = replace(config, engine=EngineConfig(executor="simulated"), model=ModelConfig(path=STORYTELLER))
    preflight(simulated)
    folder = config.model.path
    told = json.loads((STORYTELLER / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**told, "num_nextn_predict_layers": 0}), encoding="utf-8")
    without = replace(simulated, model=ModelConfig(path=folder, tokenizer=str(STORYTELLER)))
    with pytest.raises(SpecError, match="has no MTP module to draft 1 tokens with; set drafts to 0"):
        preflight(without)
    preflight(replace(without, simulation=replace(without.simulation, drafts=0)))


def test_ranks_of_two_kinds_that_are_simulated(config: ServeConfig) -> None:
    ranks = replace(config.decode, attention_ranks=2, expert_ranks=1)
    simulated = replace(config, decode=ranks, engine=EngineConfig(executor="simulated"))
    with pytest.raises(ConfigError, match=r"^\[decode\] attention_ranks = 2 .* has no ranks in a system that runs"):
        preflight(simulated)


def test_a_redis_that_is_not_there(config: ServeConfig) -> None:
    wrong = replace(config, kvcache=KvCacheConfig(replicas=1, directory=f"redis://127.0.0.1:{free_port()}/0"))
    with pytest.raises(ConfigError, match=r"cannot be reached .* start it, or correct the address"):
        preflight(wrong)
    preflight(replace(wrong, kvcache=replace(wrong.kvcache, replicas=0)))  # no instance would use it


def test_a_redis_for_ray_that_is_not_there(config: ServeConfig) -> None:
    storage = f"redis://127.0.0.1:{free_port()}"
    wrong = replace(config, cluster=replace(config.cluster, gcs_storage=storage))
    with pytest.raises(ConfigError, match=r"\[cluster\] gcs_storage cannot be reached .* start it, or correct"):
        preflight(wrong)


@needs_redis
def test_a_redis_that_is_there(config: ServeConfig, tmp_path: Path) -> None:
    server = RedisProcess(tmp_path)
    try:
        server.start()
        preflight(replace(config, kvcache=KvCacheConfig(replicas=1, directory=server.url)))
    finally:
        server.end()


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_that_cannot_be_read_is_told_with_its_key(config: ServeConfig, tmp_path: Path, name: str) -> None:
    own = tmp_path / "own"
    shutil.copytree(config.model.path, own)
    (own / name).write_text("{")
    with pytest.raises(ModelError, match=r"^\[model\] tokenizer: .*own"):
        preflight(replace(config, model=replace(config.model, tokenizer=str(own))))
    with pytest.raises(ModelError, match=r"^\[model\] path, its tokenizer: .*own"):
        preflight(replace(config, model=replace(config.model, path=own)))


def test_a_machine_that_is_short_of_memory_is_told_before_anything_starts(config: ServeConfig) -> None:
    shared = (config.prefill.ub_memory_mib + config.decode.ub_memory_mib + config.kvcache.ub_memory_mib) * MIB
    enough = FreeMemory(total=shared + 4 * GIB, shared=shared)
    assert tight_lines(config, GIB, enough) == []
    (small,) = tight_lines(config, GIB, replace(enough, shared=shared - 1))
    assert re.search(r"/dev/shm has [\d,]+ MiB free, and the pools start with [\d,]+ MiB .*--shm-size", small)
    (little,) = tight_lines(config, GIB, replace(enough, total=shared + 2 * GIB))
    assert "GiB of memory free, and this start takes about" in little
    assert free_memory().total <= machine.machine_bytes()


def test_a_start_without_a_compiler_is_told_what_computes(
    config: ServeConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "c++-that-is-nowhere")
    on_cpu = replace(config, model=replace(config.model, device="cpu"))
    warn_of_machine(on_cpu)
    (line,) = [one for one in caplog.messages if "compiler" in one]
    assert re.search(r"-nowhere, does not exist: install one \(.*\), so torch computes, several times slower", line)
    assert compiler_line(replace(on_cpu, engine=EngineConfig(executor="torch"))) is None
    with pytest.raises(ConfigError, match=r"executor = .native.: the compiler of CXX, .* install one"):
        warn_of_machine(replace(on_cpu, engine=EngineConfig(executor="native")))
    monkeypatch.delenv("CXX")
    assert compiler_line(on_cpu) is None
