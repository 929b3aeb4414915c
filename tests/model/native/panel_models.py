"""Models whose products are panels: their products, and their outputs."""

import torch
from torch import Tensor

from serving.model.experts import ExpertLayer, LocalExperts
from serving.model.model import Model
from serving.model.native.panels import PanelHeads, PanelLinear
from tests.model.latent import latent_weights
from tests.model.paged import PagedRunner

TOKENS = torch.randint(6, 320, (40,), generator=torch.Generator().manual_seed(5)).tolist()


def products(model: Model) -> list[PanelLinear | PanelHeads]:
    """All products of a model; fails if one has another form."""
    found: list[object] = [model.head, *(layer.fuse for layer in model.mtp), *(layer.head for layer in model.mtp)]
    for block in [*model.blocks, *(layer.block for layer in model.mtp)]:
        w = latent_weights(block)
        found += [w.into, w.expand, w.key_absorb, w.value_absorb, w.out]
        found += [] if w.query_up is None else [w.query_up]
        net = block.feed
        shared = net.shared if isinstance(net, ExpertLayer) else net
        if isinstance(net, ExpertLayer):
            assert isinstance(net.experts, LocalExperts)
            found += [net.gate.score, *net.experts.gate_up, *net.experts.down]
        found += [] if shared is None else [shared.gate_up, shared.down]
    panels = [product for product in found if isinstance(product, PanelLinear | PanelHeads)]
    assert len(panels) == len(found)
    return panels


def logits(model: Model) -> Tensor:
    return PagedRunner(model).run("s", TOKENS, [20, 17, 1, 1, 1])
