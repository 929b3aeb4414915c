"""Models that cannot be imported: one line each, and no file is written."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import ModelError
from serving.tools.importing.import_run import import_gguf, plan_import
from tests.model.random_checkpoint import write_random_checkpoint
from tests.tools.importing.folders import write_dense
from tests.tools.importing.gguf_models import write_gguf

V = "blk.1.attn_v.weight"


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad") / "llama"
    write_dense(folder, "llama")
    return folder


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("bad") / "deepseek")


def refusal(tmp_path: Path, folder: Path, **changes: object) -> str:
    path = write_gguf(tmp_path / "bad.gguf", folder, **changes)  # type: ignore[arg-type]
    with pytest.raises(ModelError) as caught:
        import_gguf(path, tmp_path / "out", "bfloat16", lambda *_: None)
    assert [one.name for one in tmp_path.iterdir()] == ["bad.gguf"]
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{path} cannot be imported: ")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"llama.block_count": None}, "it lacks the key llama.block_count"),
        ({"llama.embedding_length": None}, "it lacks the key llama.embedding_length"),
        ({"llama.block_count": 0}, "llama.block_count = 0 must be a whole number from 1"),
        ({"llama.block_count": 1 << 31}, "llama.block_count = 2147483648 must be"),
        ({"llama.block_count": 1 << 30}, "it has 1073741824 layers, and only 21 tensors"),
        ({"llama.block_count": 3}, "it lacks blk.2.attn_norm.weight, blk.2.ffn_norm.weight, "),
        ({"llama.block_count": 1}, "it has unexpected blk.1.attn_k.weight, "),
        ({"llama.block_count": "two"}, "llama.block_count is 'two', which is not of the type it needs"),
        ({"llama.attention.head_count": [4, 4]}, "llama.attention.head_count is [4, 4], which is not of the type"),
        ({"llama.attention.head_count_kv": 3}, "4 query heads and 3 key heads of 16 elements do not fit together"),
        ({"llama.attention.key_length": 8}, "llama.attention.value_length is 16; only 8, a head's whole width, is"),
        ({"llama.rope.dimension_count": 8}, "llama.rope.dimension_count is 8; only 16"),
        ({"llama.attention.sliding_window": 128}, "llama.attention.sliding_window is not read"),
        ({"llama.attention.causal": False}, "its attention is not causal"),
        ({"llama.attention.causal": 1}, "llama.attention.causal is 1, which is not of the type it needs"),
        ({"llama.logit_scale": 0.1, "llama.new": 1}, "llama.logit_scale, llama.new are not supported, and may change"),
        ({"llama.expert_count": 8}, "it has experts, which are not read of 'llama'"),
        ({"llama.feed_forward_length": 97}, "blk.0.ffn_gate.weight [96, 64] instead of [97, 64]"),
        ({"llama.vocab_size": 500}, "its vocabulary has 500 tokens, and token_embd.weight 320 rows"),
        ({"llama.rope.scaling.type": "longrope"}, "rope.scaling.type 'longrope' is not read"),
        ({"llama.rope.scaling.type": 3}, "llama.rope.scaling.type is 3, which is not of the type it needs"),
        ({"llama.rope.scaling.type": "linear"}, "it lacks the key llama.rope.scaling.factor"),
        ({"tokenizer.ggml.model": "t5"}, "its tokenizer is of the kind 't5'"),
        ({"tokenizer.ggml.tokens": ["a", "b"]}, "token_type does not have one for each of the 2 tokens"),
        ({"tokenizer.ggml.eos_token_id": 999}, "eos_token_id is 999, of 320 tokens"),
    ],
)
def test_keys(dense: Path, tmp_path: Path, keys: Mapping[str, object], words: str) -> None:
    assert words in refusal(tmp_path, dense, keys=keys)


def test_an_unknown_architecture(dense: Path, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "bad.gguf", dense)
    path.write_bytes(path.read_bytes().replace(b"llama", b"gemma", 1))
    with pytest.raises(
        ModelError, match=r"of the architecture 'gemma', which is not read; llama, qwen2, qwen3, deepse"
    ):
        import_gguf(path, tmp_path / "out", "bfloat16", lambda *_: None)
    path.write_bytes(path.read_bytes().replace(b"general.architecture", b"general.architectura", 1))
    with pytest.raises(ModelError, match="of the architecture 'None'"):
        import_gguf(path, tmp_path / "out", "bfloat16", lambda *_: None)


def test_tensors(dense: Path, tmp_path: Path) -> None:
    assert refusal(tmp_path, dense, without=(V,)) == f"it lacks {V}"
    assert refusal(tmp_path, dense, without=("token_embd.weight",)) == "it lacks token_embd.weight"
    one = np.zeros((2, 64), dtype=np.float32)
    assert refusal(tmp_path, dense, extra={"blk.0.adapter": one}) == "it has unexpected blk.0.adapter"
    assert refusal(tmp_path, dense, extra={V: one}) == f"it has wrongly shaped {V} [2, 64] instead of [32, 64]"
    many = refusal(tmp_path, dense, without=tuple(f"blk.{n}.attn_{k}.weight" for n in range(2) for k in "qkv"))
    assert many == "it lacks blk.0.attn_q.weight, blk.0.attn_k.weight, blk.0.attn_v.weight and 3 more"

    factors = np.linspace(1, 4, 8, dtype=np.float32)
    assert "does not follow from Llama 3's settings" in refusal(tmp_path, dense, extra={"rope_freqs.weight": factors})
    assert "has the shape [7] instead of [8]" in refusal(tmp_path, dense, extra={"rope_freqs.weight": factors[1:]})
    bad = np.full((32, 64), np.nan, dtype=np.float32)
    assert f"{V} has values that are not numbers" in refusal(tmp_path, dense, extra={V: bad})


def test_a_type_of_tensor_that_is_not_read(dense: Path, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "bad.gguf", dense)
    name = V.encode()
    data = path.read_bytes()
    at = data.index(name) + len(name) + 4 + 2 * 8  # after its dimensions
    path.write_bytes(data[:at] + (24).to_bytes(4, "little") + data[at + 4 :])  # I8
    with pytest.raises(ModelError, match=r"of a kind that is not read are blk\.1\.attn_v\.weight \(I8\)$"):
        import_gguf(path, tmp_path / "out", "bfloat16", lambda *_: None)
    path.write_bytes(data[:at] + (99).to_bytes(4, "little") + data[at + 4 :])
    with pytest.raises(ModelError, match=r"blk\.1\.attn_v\.weight is stored as type 99, which is not supported$"):
        import_gguf(path, tmp_path / "out", "bfloat16", lambda *_: None)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"deepseek2.expert_gating_func": 3}, "expert_gating_func is 3; 1 (softmax) and 2 (sigmoid) are read"),
        ({"deepseek2.expert_gating_func": 1}, "it has unexpected blk.1.exp_probs_b.bias"),
        ({"deepseek2.expert_count": None}, "it has no experts"),
        ({"deepseek2.nextn_predict_layers": 1}, "draft layers are not read"),
        ({"deepseek2.attention.kv_lora_rank": None}, "it lacks the key deepseek2.attention.kv_lora_rank"),
        ({"deepseek2.attention.key_length_mla": 8}, "key_length_mla is 8, of which 8 are rotated"),
        ({"deepseek2.attention.temperature_scale": 0.1}, "temperature_scale is not supported, and may change results"),
        ({"deepseek2.attention.q_lora_rank": None}, "it lacks blk.0.attn_q.weight"),
        ({"deepseek2.expert_count": 7}, "it has wrongly shaped blk.1.ffn_gate_inp.weight [8, 64] instead of [7, 64]"),
    ],
)
def test_keys_of_deepseek(deepseek: Path, tmp_path: Path, keys: Mapping[str, object], words: str) -> None:
    assert words in refusal(tmp_path, deepseek, keys=keys)


@pytest.fixture(scope="module")
def files(dense: Path, deepseek: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("fuzz")
    return [write_gguf(folder / f"{source.name}.gguf", source) for source in (dense, deepseek)]


@given(st.data())
def test_made_up_bytes_make_a_model_or_one_line(files: list[Path], data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(files))
    original = bytearray(path.read_bytes())
    tables = original.index(b"blk.1.") + 2000
    for _ in range(data.draw(st.integers(1, 3))):
        original[data.draw(st.integers(4, data.draw(st.sampled_from([1200, tables]))))] = data.draw(st.integers(0, 255))
    fuzzed = path.with_suffix(".fuzzed")
    fuzzed.write_bytes(original)
    try:
        plan_import(fuzzed, "bfloat16")
    except ModelError as error:
        message = str(error)
    else:
        return
    assert message.isprintable()
