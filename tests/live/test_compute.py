"""Resources of an instance: booked memory, accounted blocks, reported texts."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hardware.cost.cost_model import CostModel
from hardware.cost.device_file import load_device
from hardware.errors import SpecError
from hardware.topology import NpuId
from serving.config.serve import ServeConfig
from serving.config.simulated_cost import LEAST_BYTES, accounted_kv, npu_of, simulated_cost
from serving.config.simulation import SimulationConfig
from serving.errors import ConfigError
from serving.gateway.api.tokenizer import Tokenizer
from serving.ids import NodeId, ReplicaId
from serving.instance.executors.torch_executor import TorchExecutor
from serving.instance.live.compute import blocks_in_ub
from serving.instance.live.compute_simulated import plain_words, slowdown_of
from serving.instance.live.instance import make_compute
from serving.values.instances import InstancePlace
from tests.live.harness import small_config
from tests.model.random_checkpoint import write_random_checkpoint
from tests.model.shapes import SPARSE

DEPLOY = Path(__file__).parents[2] / "deploy"
STORYTELLER = DEPLOY / "models" / "storyteller"


def place(pool: str, npus: int, folder: Path) -> InstancePlace:
    """Some NPUs of neighbouring hosts."""
    ids = tuple(NpuId(n // 8, n % 8) for n in range(npus))
    return InstancePlace(ReplicaId("r"), pool, NodeId("n"), ids, folder / "ub-x", "127.0.0.1", 1)


def supernode() -> ServeConfig:
    """DeepSeek-R1 on whole instances."""
    config = small_config(
        STORYTELLER, engine={"executor": "simulated", "block_tokens": 512}, hardware={"hbm_per_die_mib": 0}
    )
    shape = replace(config.model, path=DEPLOY / "models" / "deepseek-r1-shape", tokenizer=str(STORYTELLER))
    big = replace(config.prefill, ub_memory_mib=20_000_000)
    return replace(config, model=shape, prefill=big, decode=big, simulation=SimulationConfig())


def test_kv_blocks_are_what_the_memory_plan_leaves(shm: Path) -> None:
    cost = CostModel(load_device("ascend-910c"))
    prefill = make_compute(supernode(), place("prefill", 16, shm), None)
    plan = cost.hbm_plan("prefill", 32)
    assert prefill.kv.count == plan.kv_tokens // 512, "every die holds the whole cache"
    assert 0.99 < prefill.npus.used_bytes / prefill.npus.capacity_bytes <= 1.0
    decode = make_compute(supernode(), place("decode", 160, shm), None)
    assert decode.kv.count == 320 * (cost.hbm_plan("decode", 320).kv_tokens // 512)


def test_dies_of_experts_hold_no_kv_blocks(shm: Path) -> None:
    apart = replace(supernode(), simulation=SimulationConfig(expert_dies=128))
    plan = simulated_cost(apart).hbm_plan("decode", 320)
    decode = make_compute(apart, place("decode", 160, shm), None)
    assert decode.kv.count == 192 * (plan.kv_tokens // 512)
    decode.npus.check()
    held = [ledger.reservations for npu in decode.npus.npus for ledger in npu.ledgers.values()]
    assert plan.expert_die is not None
    assert {one["weights"] for one in held[:192]} == {plan.weights}
    assert {one["weights"] for one in held[192:]} == {plan.expert_die.weights}
    assert {one["kv_cache"] for one in held[192:]} == {0}
    assert make_compute(apart, place("prefill", 16, shm), None).kv.count > 0


def test_kv_blocks_of_dies_that_share_their_sequences(shm: Path) -> None:
    shared = replace(supernode(), simulation=SimulationConfig(decode_attention_tp=8, prefill_attention_tp=4))
    cost = simulated_cost(shared)
    decode = make_compute(shared, place("decode", 160, shm), None)
    assert decode.kv.count == 320 // 8 * (cost.hbm_plan("decode", 320).kv_tokens // 512), "latents are in each die"
    assert decode.npus.used_bytes <= decode.npus.capacity_bytes
    prefill = make_compute(shared, place("prefill", 16, shm), None)
    assert prefill.kv.count == 32 // 4 * (cost.hbm_plan("prefill", 32).kv_tokens // 512)


def test_a_model_that_does_not_fit_says_so(shm: Path) -> None:
    with pytest.raises(SpecError, match="does not fit on 2 dies"):
        make_compute(supernode(), place("decode", 1, shm), None)


def test_a_share_of_ub_memory_without_room_for_two_blocks_is_refused() -> None:
    assert blocks_in_ub(200, 100) == 2
    with pytest.raises(ConfigError, match="holds 1 KV blocks"):
        blocks_in_ub(199, 100)


def test_a_device_of_single_dies_is_refused() -> None:
    with pytest.raises(ConfigError, match="dies per NPU"):
        npu_of(replace(load_device("ascend-910c"), die=replace(load_device("ascend-910c").die, per_npu=1)))


def test_real_blocks_are_small_and_as_many_as_accounted_ones() -> None:
    kv = accounted_kv(supernode())
    assert kv is not None
    assert kv.block_bytes == 512 * 70_272
    assert kv.real_bytes % LEAST_BYTES == 0
    assert kv.real_bytes - LEAST_BYTES < kv.block_bytes / 65_536 <= kv.real_bytes
    assert kv.real(10 * kv.block_bytes + 1) == 10 * kv.real_bytes
    assert accounted_kv(small_config(STORYTELLER)) is None


def test_placeholders_are_text_of_their_own() -> None:
    tokenizer = Tokenizer.from_folder(STORYTELLER)
    for word in plain_words(tokenizer):
        assert tokenizer.token_text(word).strip()
    with pytest.raises(ConfigError, match="no token"):
        plain_words(replace(tokenizer, vocab_size=0))


def test_steps_differ_from_their_prediction_only_when_asked_to() -> None:
    assert slowdown_of(SimulationConfig(), "decode") is None
    factor = slowdown_of(SimulationConfig(jitter=0.2), "decode")
    assert factor is not None
    assert len({factor(step) for step in range(20)}) > 10


def test_a_simulated_instance_needs_no_tensor_library() -> None:
    program = "import sys; import serving.instance.live.replica, serving.instance.live.compute_simulated; "
    program += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize(("engine", "longest"), [({}, 1024), ({"max_model_len": 64}, 64), ({"executor": "native"}, 64)])
def test_torch_computes_where_attention_may_choose(
    engine: dict[str, object], longest: int, shm: Path, tmp_path: Path
) -> None:
    folder = write_random_checkpoint(tmp_path, **SPARSE)
    compute = make_compute(small_config(folder, engine=engine), place("decode", 1, shm), None)
    assert compute.max_model_len == longest
    executor = compute.attach(memoryview(bytearray(compute.kv.count * compute.kv.real_bytes))).executor
    assert isinstance(executor, TorchExecutor) == (longest == 1024)
    compute.close()
