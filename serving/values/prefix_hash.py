"""Prefix hashes: one name for "these tokens, from the very start, under this salt".

A block's hash covers its own tokens and the hash of the block before it, so equal hashes mean equal histories and a
match can stop at the first miss. The chain starts with the namespace salt: without it a tenant can neither compute nor
probe another tenant's hashes, so the hash is a cryptographic one. Token ids are packed little endian on every host, so
that hashes agree between machines.
"""

import struct
from collections.abc import Sequence
from hashlib import blake2b

from serving.ids import BlockHash

HASH_BYTES = 16
"""128 bits: at 10^9 blocks an accidental collision has a chance below 10^-20."""

_PERSON = b"kv prefix chain"
"""Domain separation: these digests are different from any other use of BLAKE2."""


def chain_root(salt: bytes) -> BlockHash:
    """The link before the first block.

    Args:
        salt: namespace salt of any length; empty for the common namespace.
    """
    return BlockHash(blake2b(salt, digest_size=HASH_BYTES, person=_PERSON).digest())


def block_hash(parent: BlockHash, tokens: Sequence[int]) -> BlockHash:
    """Hash of one full block.

    Args:
        parent: hash of the block before, or `chain_root(salt)`.
        tokens: token ids of the block, each below 2^32.
    """
    packed = struct.pack(f"<{len(tokens)}I", *tokens)
    return BlockHash(blake2b(parent + packed, digest_size=HASH_BYTES, person=_PERSON).digest())


def extend_hashes(hashes: list[BlockHash], tokens: Sequence[int], block_tokens: int, salt: bytes) -> None:
    """Append the hashes of the full blocks of `tokens` that `hashes` does not cover yet.

    Args:
        hashes: hashes of the first `len(hashes)` blocks of the same tokens.
        tokens: all tokens from position 0.
        block_tokens: tokens per block.
    Effects: appends to `hashes`; a partly filled last block is omitted.
    """
    full = len(tokens) // block_tokens
    if len(hashes) >= full:
        return
    parent = hashes[-1] if hashes else chain_root(salt)
    for index in range(len(hashes), full):
        parent = block_hash(parent, tokens[index * block_tokens : (index + 1) * block_tokens])
        hashes.append(parent)


def prefix_hashes(tokens: Sequence[int], block_tokens: int, salt: bytes = b"") -> tuple[BlockHash, ...]:
    """Hashes of all full blocks of `tokens`, in order."""
    hashes: list[BlockHash] = []
    extend_hashes(hashes, tokens, block_tokens, salt)
    return tuple(hashes)
