"""The cost model, which does not import `serving`, reads the same from a config.json as the serving models."""

from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from hardware.cost import load_shape
from hardware.cost.model_config import PRICED_FAMILIES
from serving.model.architecture import DenseShape, ExpertShape
from serving.model.config import read_architecture
from serving.model.families.registry import FAMILIES
from tests.model.families.checkpoints import CASES
from tests.model.random_checkpoint import write_random_checkpoint


def agree(folder: Path) -> None:
    """Assert that both read the same shape from a folder."""
    priced, served = load_shape(folder), read_architecture(folder)
    assert (priced.hidden, priced.vocab) == (served.hidden_size, served.vocab_size)
    assert (priced.layers, priced.mtp_layers) == (len(served.layers), len(served.drafts))
    assert priced.attention.heads == served.attention.heads
    assert priced.attention.cached_values == served.row.elements
    assert priced.tied_head == served.tie_word_embeddings
    limit = served.computed_up_to
    indexers = [indexer for layer in served.layers if (indexer := getattr(layer.attention, "indexer", None))]
    windows = [window for layer in served.layers if (window := getattr(layer.attention, "window", None))]
    reach = priced.attention.reach(priced.layers)
    if indexers:
        assert priced.indexer is not None
        assert {(one.heads, one.head_dim, one.top_k) for one in indexers} == {astuple(priced.indexer)[:3]}
        assert priced.indexer.layers == sum(not one.shared for one in indexers)
    elif windows:
        assert {reach.limit} == set(windows)
        assert reach.share * priced.layers == pytest.approx(len(windows))
    elif limit is None or "scaled" in limit.beyond:  # a factor on queries has no cost
        assert reach.limit is None
    else:  # not computed beyond, but priced
        assert reach.limit == limit.tokens
    feeds = [layer.feed for layer in served.layers]
    dense = [feed for feed in feeds if isinstance(feed, DenseShape)]
    assert priced.dense_layers == len(dense)
    assert {priced.dense_width} == {feed.width for feed in dense} or not dense
    for feed in feeds:
        if isinstance(feed, ExpertShape):
            assert (priced.experts, priced.active_experts) == (feed.experts, feed.per_token)
            assert (priced.expert_width, priced.shared_experts * priced.expert_width) == (feed.width, feed.shared_width)


@pytest.mark.parametrize("case", CASES)
def test_what_transformers_writes(case: str, tmp_path: Path) -> None:
    keys = {"vocab_size": 320, "max_position_embeddings": 512, **CASES[case]}
    AutoConfig.for_model(case.split(" ")[0], **keys, bos_token_id=1, eos_token_id=2).save_pretrained(tmp_path)
    agree(tmp_path)


@pytest.mark.parametrize("changes", [{}, {"model_type": "kimi_k2"}, {"q_lora_rank": None, "n_shared_experts": 2}])
def test_deepseek(changes: dict[str, Any], tmp_path: Path) -> None:
    agree(write_random_checkpoint(tmp_path, **changes))


def test_whatever_is_served_is_priced() -> None:
    assert set(FAMILIES) <= set(PRICED_FAMILIES)
