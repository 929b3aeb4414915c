"""The draft layer against transformers' decoder layer with the same weights."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from serving.ids import BlockId, SequenceId
from serving.instance.executors.step_batch import build_batch, step_feeds
from serving.model.kv_cache import KvCache
from serving.model.loader import load_model
from serving.model.model import Model
from serving.values.step_plan import SequenceStep, StepPlan
from tests.model.paged import pieces_of
from tests.model.random_checkpoint import write_random_checkpoint
from tests.model.shapes import GLM4_MOE, GLM_FLASH

LENGTH = 23
TOKENS = torch.randint(6, 320, (LENGTH,), generator=torch.Generator().manual_seed(3)).tolist()
NEXT = [*TOKENS[1:], 99]


def draft(model: Model, size: int) -> tuple[Tensor, Tensor]:
    """The model's hidden states and the draft logits, fed in pieces of `size` tokens."""
    cache = KvCache(model.config, 8, 4, model.dtype, num_layers=4)
    table = [BlockId(b) for b in (5, 2, 7, 0, 1, 6)]
    hiddens, logits = [], []
    start = 0
    for n in pieces_of(size, LENGTH):
        pair = []
        for tokens in (TOKENS, NEXT):
            step = SequenceStep(SequenceId("s"), tokens[start : start + n], start, table, None, alone=n <= 4)
            pair.append(build_batch(step_feeds(StepPlan(0, (step,))), cache, model.config.attention.heads).forward)
        with torch.inference_mode():
            hidden = model.forward(pair[0], cache)
            drafted = model.mtp[0].forward(hidden, pair[1], cache, model.rope)
            logits.append(model.mtp[0].logits(drafted))
        hiddens.append(hidden)
        start += n
    return torch.cat(hiddens), torch.cat(logits)


def plain_reference(folder: Path, hidden: Tensor, tmp_path: Path) -> Tensor:
    """The definition, written out: the draft layer read as layer 3 of a transformers model of four layers."""
    longer = tmp_path / "longer"
    shutil.copytree(folder, longer)
    config = json.loads((longer / "config.json").read_text())
    (longer / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4, "num_nextn_predict_layers": 0}))
    model: Any = AutoModelForCausalLM.from_pretrained(longer, dtype=torch.float32, attn_implementation="eager")
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    prefix = "model.layers.3."

    def norm(x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]) * weights[prefix + name]

    embed = weights.get(prefix + "embed_tokens.weight", weights["model.embed_tokens.weight"])
    head = weights.get(prefix + "shared_head.head.weight", weights["lm_head.weight"])
    x = torch.cat((norm(embed[torch.tensor(NEXT)], "enorm.weight"), norm(hidden, "hnorm.weight")), -1)
    x = F.linear(x, weights[prefix + "eh_proj.weight"])[None]
    positions = torch.arange(LENGTH)[None]
    mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)[None, None]
    rotary = model.model.rotary_emb(x, positions)
    with torch.inference_mode():
        x = model.model.layers[3](x, attention_mask=mask, position_ids=positions, position_embeddings=rotary)
    return F.linear(norm(x[0], "shared_head.norm.weight"), head)


@pytest.mark.parametrize("shape", [{}, GLM_FLASH, GLM4_MOE], ids=["deepseek_v3", "glm4_moe_lite", "glm4_moe"])
@pytest.mark.parametrize("own_head", [False, True])
def test_draft_logits(tmp_path: Path, shape: dict[str, Any], own_head: bool) -> None:
    folder = write_random_checkpoint(tmp_path / "model", own_draft_head=own_head, **shape)
    model = load_model(folder)
    hidden, logits = draft(model, LENGTH)
    expected = plain_reference(folder, hidden, tmp_path)
    for drafted in (logits, draft(model, 7)[1], draft(model, 1)[1]):
        assert (drafted - expected).abs().max() < 1e-4
