"""The architecture that a deployment serves: of two forms of a model with sparse attention, the one that is computed.

    contexts end at `index_topk` tokens, or before     without indexers: nothing is ever chosen, and nobody pays
    they may be longer, executor `auto` or `torch`     with them, by torch: the native step does not compute them
    they may be longer, executor `native`, or experts on several ranks, which need the native step
                                                       without them; contexts end at `index_topk` tokens
    executor `simulated`                               with them: nothing is computed, and their share is priced

All of a deployment find the same by its configuration alone, since cache rows have the indexer's key or not.
"""

from dataclasses import replace

from serving.config.serve import ServeConfig
from serving.model.architecture import Architecture
from serving.model.config import read_architecture
from serving.model.dense_form import without_indexers


def served_architecture(config: ServeConfig) -> Architecture:
    """The architecture of the model to serve; where it has indexers, torch computes, or nothing does.

    Raises: ModelError, as `read_architecture`.
    Effects: reads files.
    """
    model = read_architecture(config.model.path)
    if model.indexer is None:
        return model
    plain, longest = without_indexers(model), config.engine.max_model_len or model.max_position_embeddings
    if config.engine.executor == "simulated":
        return model
    if config.engine.executor == "native" or any(pool.ep > 1 for pool in config.pools.values()):
        return plain
    return model if longest > model.indexer.top_k else replace(plain, computed_up_to=None)  # nothing is withheld
