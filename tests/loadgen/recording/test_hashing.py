"""Block hashes computed from prompts: chained, numbered by appearance, as many as there are blocks of tokens."""

import json

import pytest

from loadgen.recording.hashing import BlockHasher, prompt_of


def _body(**fields: object) -> str:
    return json.dumps({"model": "m", **fields})


def test_prompts_of_every_kind() -> None:
    assert prompt_of(_body(prompt="hällo")) == "hällo"
    assert prompt_of(_body(prompt=[1, 2])) == [1, 2]
    assert prompt_of(_body(prompt=["a", "b"])) == "a\nb"
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "u"}]}]
    assert prompt_of(_body(messages=messages)) == 'system\ns\nuser\n[{"type":"text","text":"u"}]\n'
    assert prompt_of(_body(messages=["odd"])) == "odd"


@pytest.mark.parametrize("body", ["nonsense", "[]", "{}", '{"prompt": 5}', '{"prompt": [1, "a"]}', '{"prompt": {}}'])
def test_bodies_without_a_prompt(body: str) -> None:
    assert prompt_of(body) is None


def test_equal_beginnings_get_equal_ids_and_nothing_else() -> None:
    hasher = BlockHasher(block_tokens=2, bytes_per_block=4)
    assert hasher.hash_ids("aaaabbbbcccc", 6) == [0, 1, 2]
    assert hasher.hash_ids("aaaabbbbdddd", 6) == [0, 1, 3]
    assert hasher.hash_ids("aaaa", 2) == [0]
    assert hasher.hash_ids("xxxxbbbb", 4) == [4, 5]  # the same block behind another one is another prefix
    assert hasher.hash_ids("aaaabbbbcccc", 6) == [0, 1, 2]


def test_as_many_ids_as_blocks_of_tokens() -> None:
    hasher = BlockHasher(block_tokens=2, bytes_per_block=4)
    assert len(hasher.hash_ids("aaaabbbbcccc", 3)) == 2  # fewer tokens than bytes promised: the last takes the rest
    assert hasher.hash_ids("aaaabbbb", 4)[1] != hasher.hash_ids("aaaabbbbcccc", 3)[1]
    assert len(set(hasher.hash_ids("aa", 7))) == 4  # more tokens than bytes promised
    assert hasher.hash_ids("", 0) == []


def test_token_ids_are_cut_exactly() -> None:
    hasher = BlockHasher(block_tokens=2, bytes_per_block=1)
    assert hasher.hash_ids([1, 2, 3, 4, 5], 99) == [0, 1, 2]
    assert hasher.hash_ids([1, 2, 3, 4, 6], 99) == [0, 1, 3]
    assert hasher.hash_ids([1, 2], 99) == [0]
    assert hasher.hash_ids([-1, 2**64], 0) == [4]
