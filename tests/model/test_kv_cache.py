"""The KV arena: layout, shared buffers, fingerprints."""

import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from serving.errors import ModelError
from serving.model.architecture import Architecture
from serving.model.config import read_architecture
from serving.model.dense_form import without_indexers
from serving.model.kv_cache import KvCache
from serving.model.kv_shape import KvDtype
from serving.model.loader import load_model
from tests.model.paged import PagedRunner, pieces_of
from tests.model.random_checkpoint import write_random_checkpoint
from tests.model.shapes import SPARSE


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Architecture:
    return read_architecture(write_random_checkpoint(tmp_path_factory.mktemp("model")))


def test_a_block_is_one_run_of_bytes_whose_rows_are_gathered_in_table_order(config: Architecture) -> None:
    cache = KvCache(config, 5, 4, torch.bfloat16)
    assert cache.tensor.shape == (5, 3, 4, 40)
    assert cache.block_bytes == 3 * 4 * 40 * 2
    assert cache.size_bytes == 5 * cache.block_bytes == cache.tensor.nbytes
    assert cache.tensor[2].is_contiguous()
    assert cache.tensor[2].data_ptr() - cache.tensor.data_ptr() == 2 * cache.block_bytes
    assert (cache.used_bytes(0), cache.used_bytes(1), cache.used_bytes(4)) == (0, cache.block_bytes, cache.block_bytes)
    cache = KvCache(config, 5, 2, torch.float32)
    rows = torch.arange(3.0)[:, None].expand(3, 40) + 1
    table = [4, 1]
    slots = torch.tensor([table[p // 2] * 3 * 2 + p % 2 for p in range(3)])
    cache.write(1, slots, rows)
    found = cache.gather(1, torch.tensor(table) * 3)
    assert found[:, 0].tolist() == [1, 2, 3, 0]
    assert cache.gather(0, torch.tensor(table) * 3).abs().max() == 0
    assert cache.tensor[1, 1, 0, 0] == 3


def test_lies_on_a_given_buffer(config: Architecture) -> None:
    size = KvCache(config, 2, 4, torch.float32).size_bytes
    memory = bytearray(size + 7)
    cache = KvCache(config, 2, 4, torch.float32, buffer=memoryview(memory))
    cache.tensor[1] = 1.0
    assert memory[cache.block_bytes : size] == torch.ones(size // 8).numpy().tobytes()
    with pytest.raises(ModelError, match="needs device cpu"):
        KvCache(config, 2, 4, torch.float32, "meta", memoryview(bytearray(10)))
    # Zeroes are zeroes in INT8, too.
    cache = KvCache(config, 2, 4, torch.float32, kv_dtype="int8")
    assert cache.gather(1, torch.tensor([3])).abs().max() == 0


@pytest.mark.parametrize("buffer", [memoryview(bytes(10_000_000)), memoryview(bytearray(100))])
def test_refuses_buffers_that_are_read_only_or_too_small(config: Architecture, buffer: memoryview) -> None:
    with pytest.raises(ModelError, match="writable bytes"):
        KvCache(config, 2, 4, torch.float32, buffer=buffer)


def test_fingerprint_names_everything_that_gives_bytes_their_meaning(config: Architecture, tmp_path: Path) -> None:
    other = read_architecture(write_random_checkpoint(tmp_path, rope_theta=20000.0))
    caches = [
        KvCache(config, 2, 4, torch.float32),
        KvCache(config, 2, 8, torch.float32),
        KvCache(config, 2, 4, torch.bfloat16),
        KvCache(config, 2, 4, torch.float32, num_layers=4),
        KvCache(config, 2, 4, torch.float32, kv_dtype="int8"),
        KvCache(config, 2, 4, torch.bfloat16, kv_dtype="int8"),
        KvCache(other, 2, 4, torch.float32),
    ]
    assert len({cache.layout_fingerprint for cache in caches}) == len(caches)
    assert KvCache(config, 9, 4, torch.float32).layout_fingerprint == caches[0].layout_fingerprint


def test_raw_memory_is_described_and_every_part_of_an_int8_row_is_aligned(config: Architecture, tmp_path: Path) -> None:
    def described(dtype: torch.dtype, kv_dtype: KvDtype) -> tuple[str, int, int, int]:
        cache = KvCache(config, 2, 4, dtype, kv_dtype=kv_dtype)
        assert cache.tensor.nbytes == cache.size_bytes == 2 * 3 * 4 * cache.row_bytes
        return cache.form, cache.layout.rope_offset_bytes, cache.layout.scale_offset_bytes, cache.row_bytes

    assert described(torch.float32, "auto") == ("float32", 128, -1, 160)
    assert described(torch.bfloat16, "auto") == ("bfloat16", 64, -1, 80)
    assert described(torch.float32, "int8") == ("int8", 32, 64, 68)
    assert described(torch.bfloat16, "int8") == ("int8", 32, 48, 52)
    ragged = read_architecture(write_random_checkpoint(tmp_path, kv_lora_rank=30, qk_rope_head_dim=6))
    cache = KvCache(ragged, 2, 4, torch.bfloat16, kv_dtype="int8")
    assert (cache.layout.rope_offset_bytes, cache.layout.scale_offset_bytes, cache.row_bytes) == (32, 44, 48)
    rows = torch.randn(2, 36, generator=torch.Generator().manual_seed(0)).bfloat16()
    cache.write(2, torch.tensor([0, 1]), rows)
    assert torch.equal(cache.gather(2, torch.tensor([0]))[:2], rows)


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_indexers_key_is_the_last_part_of_a_row_and_never_rounded(
    dtype: torch.dtype, kv_dtype: KvDtype, tmp_path: Path
) -> None:
    sparse = read_architecture(write_random_checkpoint(tmp_path, kv_lora_rank=30, qk_rope_head_dim=6, **SPARSE))
    cache = KvCache(sparse, 5, 4, dtype, kv_dtype=kv_dtype)
    rows = torch.randn(3, 30 + 6 + 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    index = rows[:, 36:].clone()
    cache.write(1, torch.tensor([2 * 12, 2 * 12 + 1, 4 * 12 + 3]), rows)
    runs = torch.tensor([2 * 3, 4 * 3])
    whole, keys = cache.gather(1, runs), cache.gather_index_keys(1, runs)
    assert torch.equal(whole[[0, 1, 7]], rows), "as they were written, rounded or not"
    assert torch.equal(keys, whole[:, 36:])
    assert torch.equal(keys[[0, 1, 7]], index)
    assert torch.equal(cache.gather_chosen(1, torch.tensor([4 * 12 + 3, 2 * 12])), rows[[2, 0]])
    other = KvCache(without_indexers(sparse), 5, 4, dtype, kv_dtype=kv_dtype)
    assert cache.row_bytes > other.row_bytes
    assert cache.layout_fingerprint != other.layout_fingerprint


def test_int8_rows_have_the_bytes_of_the_layout_and_are_rounded_to_what_is_gathered(config: Architecture) -> None:
    cache = KvCache(config, 5, 2, torch.float32, kv_dtype="int8")
    rows = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    rows[1, :32] = 0
    rows[2, :32] *= 1e-30
    before = rows.clone()
    cache.write(1, torch.tensor([4 * 6, 4 * 6 + 1, 1 * 6]), rows)
    for row, (block, offset) in zip(before, ((4, 0), (4, 1), (1, 0)), strict=True):
        stored = cache.tensor[block, 1, offset].numpy().tobytes()
        latent = row[:32].numpy()
        largest = np.abs(latent).max()
        factor = np.float32(127) / max(largest, np.float32(1e-30))
        assert np.array_equal(np.frombuffer(stored[:32], np.int8), np.round(latent * factor).astype(np.int8))
        assert stored[32:64] == row[32:].numpy().tobytes()
        assert struct.unpack("f", stored[64:]) == (largest / np.float32(127),)
    for dtype in (torch.float32, torch.bfloat16):
        cache = KvCache(config, 5, 2, dtype, kv_dtype="int8")
        rows = (3 * torch.randn(2, 40, generator=torch.Generator().manual_seed(0))).to(dtype)
        before = rows.clone()
        cache.write(0, torch.tensor([18, 19]), rows)
        found = cache.gather(0, torch.tensor([9]))
        assert found.dtype == dtype
        assert torch.equal(found, rows)
        assert torch.equal(rows[:, 32:], before[:, 32:])
        values = before[:, :32].float()
        half_a_step = values.abs().amax(-1, keepdim=True) / 254 + 2**-8 * values.abs() * (dtype == torch.bfloat16)
        assert ((rows[:, :32].float() - values).abs() <= half_a_step * 1.001).all()
        assert not torch.equal(rows, before)


def test_int8_logits_do_not_depend_on_where_a_prompt_was_cut(tmp_path: Path) -> None:
    # Absorbed and plain heads differ in the last bits, so a value between two steps may round either way: the remaining
    # difference is far below that of int8 itself.
    model = load_model(write_random_checkpoint(tmp_path))
    tokens = torch.randint(6, 320, (70,), generator=torch.Generator().manual_seed(3)).tolist()
    whole = PagedRunner(model, kv_dtype="int8").run("a", tokens, [70])
    changed = (whole - PagedRunner(model).run("a", tokens, [70])).abs().mean()
    assert changed > 0.01
    for size in (1, 3, 16):
        pieces = PagedRunner(model, kv_dtype="int8", seed=size).run("a", tokens, pieces_of(size, 70))
        assert (pieces - whole).abs().mean() < changed / 50
        assert torch.equal(pieces.argmax(-1), whole.argmax(-1))
