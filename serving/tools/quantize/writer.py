"""Form of the quantised checkpoint: its configuration, floating-point tensors, and companion files."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from hardware.regular_file import IrregularFileError
from serving.model.checkpoint import Int8Weight
from serving.model.quantization import INT8_ACTIVATIONS, INT8_FORMAT, INT8_METHOD, INT8_WEIGHTS
from serving.model.weight_files import INDEX
from serving.regular_file import check_regular
from serving.tools.quantize.structure import ignore_patterns

logger = logging.getLogger(__name__)

_ROUTER = ".mlp.gate.weight"
_COPIED_SUFFIXES = (".json", ".jinja", ".model", ".tiktoken", ".txt")
_COPIED_PREFIXES = ("LICENSE", "NOTICE", "tokenization_", "configuration_", "modeling_")


def companions(source: Path) -> Iterator[Path]:
    """Files of a checkpoint folder that a quantised one has too: tokenizer, template, licence.

    Effects: logs files that are skipped because they are no regular file of the folder.
    """
    for path in sorted(source.iterdir()):
        if path.is_file() and _is_copied(path.name):
            try:
                check_regular(path, within=source)
            except IrregularFileError as error:
                logger.warning("not copied: %s", error)
                continue
            yield path


def quantised_config(raw: Mapping[str, object], kept: frozenset[str], *, untie: bool) -> dict[str, object]:
    """`config.json` of the quantised model.

    Args:
        raw: the original's.
        kept: operator classes that stayed in floating point on request.
        untie: the head has become a tensor of its own, quantised separately from the embedding.
    """
    group = {
        "targets": ["Linear"],
        "weights": {**INT8_WEIGHTS, "group_size": None, "block_structure": None, "actorder": None},
        "input_activations": {**INT8_ACTIVATIONS, "group_size": None, "block_structure": None, "actorder": None},
        "output_activations": None,
    }
    quantization = {
        "quant_method": INT8_METHOD,
        "format": INT8_FORMAT,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ignore_patterns(kept),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }
    return {**raw, **({"tie_word_embeddings": False} if untie else {}), "quantization_config": quantization}


def stored_as(name: str, given: Tensor | Int8Weight, stored: str, dtype: str) -> Tensor | Int8Weight:
    """A floating-point tensor in the form that the original checkpoint has it in; routers in float32 (see `folding`).

    Args:
        name: of the tensor.
        stored: safetensors' name of that form; one that is none of ours (FP8) becomes the model's `dtype`.
    """
    if isinstance(given, Int8Weight) or name.endswith(_ROUTER):
        return given
    forms = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
    model = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    return given.to(forms.get(stored, model))


def _is_copied(name: str) -> bool:
    if name in ("config.json", INDEX) or name.endswith(".safetensors"):
        return False
    return name.endswith(_COPIED_SUFFIXES) or name.startswith(_COPIED_PREFIXES)
