"""The KV arena: layout, shared buffers, fingerprints."""

from pathlib import Path

import pytest
import torch

from serving.errors import ModelError
from serving.model.config import ModelConfig
from serving.model.kv_cache import KvCache
from tests.model.random_checkpoint import write_random_checkpoint


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return ModelConfig.from_folder(write_random_checkpoint(tmp_path_factory.mktemp("model")))


def test_a_block_is_one_contiguous_run_of_bytes(config: ModelConfig) -> None:
    cache = KvCache(config, 5, 4, torch.bfloat16)
    assert cache.tensor.shape == (5, 3, 4, 40)
    assert cache.block_bytes == 3 * 4 * 40 * 2
    assert cache.size_bytes == 5 * cache.block_bytes == cache.tensor.nbytes
    assert cache.tensor[2].is_contiguous()
    assert cache.tensor[2].data_ptr() - cache.tensor.data_ptr() == cache.block_offset(2)
    assert (cache.used_bytes(0), cache.used_bytes(1), cache.used_bytes(4)) == (0, cache.block_bytes, cache.block_bytes)


def test_written_rows_are_gathered_in_table_order(config: ModelConfig) -> None:
    cache = KvCache(config, 5, 2, torch.float32)
    rows = torch.arange(3.0)[:, None].expand(3, 40) + 1
    table = [4, 1]
    slots = torch.tensor([table[p // 2] * 3 * 2 + p % 2 for p in range(3)])
    cache.write(1, slots, rows)
    found = cache.gather(1, torch.tensor(table) * 3)
    assert found[:, 0].tolist() == [1, 2, 3, 0]
    assert cache.gather(0, torch.tensor(table) * 3).abs().max() == 0
    assert cache.tensor[1, 1, 0, 0] == 3


def test_lies_on_a_given_buffer_and_zeroes_it(config: ModelConfig) -> None:
    size = KvCache(config, 2, 4, torch.float32).size_bytes
    memory = bytearray(b"\xff" * (size + 7))
    cache = KvCache(config, 2, 4, torch.float32, buffer=memoryview(memory))
    assert memory[:size] == bytes(size)
    assert memory[size:] == b"\xff" * 7
    cache.tensor[1] = 1.0
    assert memory[cache.block_offset(1) : size] == torch.ones(size // 8).numpy().tobytes()


@pytest.mark.parametrize("buffer", [memoryview(bytes(10_000_000)), memoryview(bytearray(100))])
def test_refuses_buffers_that_are_read_only_or_too_small(config: ModelConfig, buffer: memoryview) -> None:
    with pytest.raises(ModelError, match="writable bytes"):
        KvCache(config, 2, 4, torch.float32, buffer=buffer)


def test_refuses_a_buffer_for_another_device(config: ModelConfig) -> None:
    with pytest.raises(ModelError, match="needs device cpu"):
        KvCache(config, 2, 4, torch.float32, "meta", memoryview(bytearray(10)))


def test_fingerprint_names_everything_that_gives_bytes_their_meaning(config: ModelConfig, tmp_path: Path) -> None:
    other = ModelConfig.from_folder(write_random_checkpoint(tmp_path, rope_theta=20000.0))
    caches = [
        KvCache(config, 2, 4, torch.float32),
        KvCache(config, 2, 8, torch.float32),
        KvCache(config, 2, 4, torch.bfloat16),
        KvCache(config, 2, 4, torch.float32, num_layers=4),
        KvCache(other, 2, 4, torch.float32),
    ]
    assert len({cache.layout_fingerprint for cache in caches}) == len(caches)
    assert KvCache(config, 9, 4, torch.float32).layout_fingerprint == caches[0].layout_fingerprint
