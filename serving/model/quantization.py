"""Supported quantised layouts of a checkpoint, and the one that `config.json` specifies. Imports no torch.

Three are supported. *FP8*, block-scaled, as published by DeepSeek, and *MXFP4*, as in gpt-oss's experts (four bits per
number, 32 share an exponent), are dequantised while they are read. *INT8* in compressed-tensors' `int-quantized` form
is a symmetric int8 weight `X.weight [out, in]` with `X.weight_scale [out, 1]`, multiplied with activations that are
rounded to int8 per token at run time, except for `kv_b_proj`, which decode absorbs. The tensors themselves show which
matrices are INT8; the configuration's `ignore` patterns are for readers that need it before opening the files.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from serving.errors import ModelError

MXFP4_METHOD = "mxfp4"
INT8_METHOD = "compressed-tensors"
INT8_FORMAT = "int-quantized"
INT8_WEIGHTS: Mapping[str, object] = {
    "num_bits": 8,
    "type": "int",
    "symmetric": True,
    "strategy": "channel",
    "dynamic": False,
}
"""Compressed-tensors' settings for one static scale per output channel."""
INT8_ACTIVATIONS: Mapping[str, object] = {
    "num_bits": 8,
    "type": "int",
    "symmetric": True,
    "strategy": "token",
    "dynamic": True,
}
"""Compressed-tensors' settings for one scale per token, computed at run time."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """Formats of a checkpoint's stored weights.

    Args:
        fp8_block: rows and columns that share one scale of an FP8 matrix; None if there is none.
        int8: whether matrices may be INT8 with one scale per output channel.
        mxfp4: whether experts may be MXFP4.
    """

    fp8_block: tuple[int, int] | None = None
    int8: bool = False
    mxfp4: bool = False


def read_quantization(raw: Mapping[str, object]) -> Quantization:
    """Read the quantisation from `config.json`.

    Raises: ModelError for an unsupported layout; TypeError or ValueError for a malformed one.
    """
    given = raw.get("quantization_config")
    if given is None:
        return Quantization()
    if not isinstance(given, dict):
        raise TypeError("quantization_config")
    method = given.get("quant_method")
    if method == INT8_METHOD:
        _check_int8(given)
        return Quantization(int8=True)
    if method == MXFP4_METHOD:
        return Quantization(mxfp4=True)  # the tensors show which experts are, not `modules_to_not_convert`
    if method != "fp8" or given.get("fmt", "e4m3") != "e4m3":
        raise ModelError(
            f"quantization {method!r} is not supported; give a bf16, a block-scaled fp8 (e4m3), an {MXFP4_METHOD} or "
            f"an INT8 (W8A8 {INT8_METHOD}) checkpoint"
        )
    rows, columns = given.get("weight_block_size") or (128, 128)
    if not (isinstance(rows, int) and isinstance(columns, int) and rows > 0 and columns > 0):
        raise ModelError(f"weight_block_size = {[rows, columns]} must be two whole numbers above 0")
    return Quantization(fp8_block=(rows, columns))


def _check_int8(given: Mapping[str, object]) -> None:
    """Raises: ModelError naming the first setting that is not W8A8, static per channel and dynamic per token."""
    if given.get("format") != INT8_FORMAT:
        raise _unsupported(f"format = {given.get('format')!r}", INT8_FORMAT)
    if given.get("kv_cache_scheme") is not None:
        raise _unsupported("a kv_cache_scheme", "null (the engine's kv_dtype sets the cache's form)")
    groups = given.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise TypeError("quantization_config.config_groups")
    for name, group in groups.items():
        if not isinstance(group, dict):
            raise TypeError(f"quantization_config.config_groups.{name}")
        if group.get("output_activations") is not None:
            raise _unsupported(f"{name}.output_activations", "null")
        _check_part(f"{name}.weights", group.get("weights"), INT8_WEIGHTS)
        _check_part(f"{name}.input_activations", group.get("input_activations"), INT8_ACTIVATIONS)


def _check_part(name: str, given: object, wanted: Mapping[str, object]) -> None:
    if not isinstance(given, dict):
        raise _unsupported(f"{name} = {given!r}", f"INT8 with strategy {wanted['strategy']!r}")
    for key, value in wanted.items():
        found = given.get(key, False if key == "dynamic" else None)
        if found != value:
            raise _unsupported(f"{name}.{key} = {found!r}", repr(value))


def _unsupported(what: str, instead: str) -> ModelError:
    return ModelError(f"{INT8_METHOD} quantization with {what} is not supported; only {instead} is")
