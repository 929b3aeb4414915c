"""Parts of a checkpoint: the tensors of a GGUF file from which each tensor of a Hugging Face folder is made, and how.

llama.cpp's converter changes some: rows of Llama's queries and keys so that rotated pairs are neighbours, experts into
one tensor for all, DeepSeek's expansion of latents into one for keys and one for values. This module reverses that.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from serving.errors import ModelError
from serving.tools.importing.gguf_file import GgufFile, StoredTensor, is_readable

Shape = tuple[int, ...]
Named = Iterator[tuple[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Part:
    """Tensors of a file, and their conversion.

    Args:
        sources: shapes that the file's tensors must have, by name.
        make: tensors of the checkpoint, float32; called with the sources in their order.
    """

    sources: Mapping[str, Shape]
    make: Callable[[Sequence[StoredTensor]], Named]


def same(source: str, shape: Shape, target: str) -> Part:
    """A renamed tensor."""
    return Part({source: shape}, lambda stored: iter([(target, stored[0].read())]))


def halves(source: str, shape: Shape, target: str, heads: int) -> Part:
    """Rows whose rotated pairs are neighbours, put back into halves of each head.

    Args:
        shape: `[heads * width, ...]`.
    """

    def make(stored: Sequence[StoredTensor]) -> Named:
        value = stored[0].read()
        pairs = value.reshape(heads, shape[0] // heads // 2, 2, -1)
        yield target, pairs.transpose(1, 2).reshape(value.shape)

    return Part({source: shape}, make)


def experts(source: str, shape: Shape, target: str) -> Part:
    """Matrices of all experts in one tensor, read one by one.

    Args:
        shape: `[experts, rows, columns]`.
        target: with `{}` for the expert's number.
    """

    def make(stored: Sequence[StoredTensor]) -> Named:
        for expert in range(shape[0]):
            yield target.format(expert), stored[0].read(expert)

    return Part({source: shape}, make)


def expansion(keys: tuple[str, Shape], values: tuple[str, Shape], target: str) -> Part:
    """DeepSeek's `kv_b_proj` of its two parts.

    Args:
        keys: name and `[heads, latent, width of a key's part without position]`.
        values: name and `[heads, width of a value, latent]`.
    """

    def make(stored: Sequence[StoredTensor]) -> Named:
        key, value = (one.read() for one in stored)
        both = torch.cat([key.transpose(1, 2), value], dim=1)
        yield target, both.reshape(-1, both.shape[-1])

    return Part(dict([keys, values]), make)


def check(file: GgufFile, parts: Sequence[Part], ignored: frozenset[str]) -> None:
    """Compare a file's tensors with those required by its keys.

    Args:
        ignored: names of others that it may have.
    Raises: ModelError naming those that are missing, unexpected, wrongly shaped or of a kind that is not read.
    """
    wanted = {name: shape for part in parts for name, shape in part.sources.items()}
    there = file.tensors
    wrong = [
        f"{name} {list(there[name].shape)} instead of {list(shape)}"
        for name, shape in wanted.items()
        if name in there and there[name].shape != shape
    ]
    unread = [f"{name} ({there[name].kind.name})" for name in wanted if name in there and not _readable(there[name])]
    problems = (
        ("it lacks", [name for name in wanted if name not in there]),
        ("it has unexpected", sorted(there.keys() - wanted.keys() - ignored)),
        ("it has wrongly shaped", wrong),
        ("of a kind that is not read are", unread),
    )
    found = [f"{verb} {_listed(names)}" for verb, names in problems if names]
    if found:
        raise ModelError("; ".join(found))


def _readable(tensor: StoredTensor) -> bool:
    return is_readable(tensor.kind)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
