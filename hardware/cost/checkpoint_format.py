"""Formats that a checkpoint states in `quantization_config` of its `config.json`; without one, it is BF16.

What is read: block-scaled FP8 (DeepSeek, Qwen3, GLM), `compressed-tensors` (vLLM's tools, `cloudmatrix quantize`),
MXFP4 (gpt-oss), AWQ and GPTQ. Anything else is refused by name: the user then specifies the format.
"""

from collections.abc import Mapping

from hardware.cost.weight_format import (
    BF16,
    FP8,
    W4A8,
    W4A16,
    W8A8,
    W8A16,
    KvFormat,
    ModelFormats,
    WeightFormat,
    formats_named,
)
from hardware.errors import SpecError

_BY_BITS: Mapping[tuple[int, bool, bool], WeightFormat] = {
    (8, False, True): W8A8,
    (4, False, True): W4A8,
    (8, False, False): W8A16,
    (4, False, False): W4A16,
    (8, True, True): FP8,
}
"""By bits of a weight, whether it is floating point, and whether activations are quantised too."""
_SAY = "set its format with --weights, or [simulation] weights"


def checkpoint_formats(config: Mapping[str, object], name: str, *, experts: bool) -> ModelFormats:
    """Formats of a checkpoint.

    Args:
        config: top level of its `config.json`.
        name: of the model, for messages.
        experts: the model has some.
    Raises: SpecError naming the quantisation that is not read.
    """
    given = config.get("quantization_config")
    if given is None:
        return ModelFormats(BF16, BF16)
    if not isinstance(given, dict):
        raise SpecError(f"model {name}: quantization_config is no JSON object; {_SAY}")
    method = given.get("quant_method")
    if method == "compressed-tensors":
        return _compressed(given, name, experts=experts)
    if method in ("awq", "gptq"):
        found = _by_bits(given.get("bits"), floating=False, activations=False)
    else:
        found = FP8 if method == "fp8" else None
    if found is not None:
        return ModelFormats(found, found)
    if method == "mxfp4":
        return formats_named("mxfp4", experts=experts)
    what = f"{method} of {given.get('bits')!r} bits" if method in ("awq", "gptq") else f"{method!r}"
    raise SpecError(f"model {name}: quantisation {what[:60]} is not priced; {_SAY}")


def _by_bits(bits: object, *, floating: bool, activations: bool) -> WeightFormat | None:
    return _BY_BITS.get((bits, floating, activations)) if isinstance(bits, int) else None


def _compressed(given: Mapping[str, object], name: str, *, experts: bool) -> ModelFormats:
    """Formats of `compressed-tensors`: a group for all, or one that names experts and one that names the rest."""
    groups = given.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise SpecError(f"model {name}: quantization_config.config_groups names no group; {_SAY}")
    of_experts: WeightFormat | None = None
    of_rest: WeightFormat | None = None
    for label, group in groups.items():
        found = _of_group(group, f"model {name}: quantization_config.config_groups.{label}")
        targets = [str(target) for target in group.get("targets") or ["Linear"]]
        named = [target for target in targets if "expert" in target]
        if named:
            of_experts = found
        if len(named) < len(targets):
            of_rest = found
    ignored = given.get("ignore")
    kept = isinstance(ignored, list) and any("attn" in str(one) for one in ignored)
    attention = BF16 if kept or of_rest is None else of_rest
    whole = of_experts or of_rest or BF16
    return ModelFormats(attention, whole if experts else attention, _kv(given.get("kv_cache_scheme")))


def _of_group(group: object, where: str) -> WeightFormat:
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(group, dict) or not isinstance(weights, dict):
        raise SpecError(f"{where} does not define the weights; {_SAY}")
    bits, floating = weights.get("num_bits"), weights.get("type") == "float"
    activations = group.get("input_activations")
    act = activations.get("num_bits") if isinstance(activations, dict) else None
    found = _by_bits(bits, floating=floating, activations=act is not None) if act in (None, 8) else None
    if found is None:
        kind = f"{bits!r} bits of {weights.get('type')!r}, activations of {act!r} bits"
        raise SpecError(f"{where}: weights of {kind} are not priced; {_SAY}")
    return found


def _kv(scheme: object) -> KvFormat:
    if not isinstance(scheme, dict):
        return "bf16"
    return "fp8" if scheme.get("type") == "float" else "int8"
