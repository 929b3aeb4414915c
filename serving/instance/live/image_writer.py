"""A process that writes the weights of one checkpoint into the pool, and ends; see `compute_native.py`."""

import logging
import pickle
import sys

import torch

from serving.errors import ModelError
from serving.instance.live.compute_native import ImageRequest
from serving.instance.live.pool_access import PoolAccess
from serving.model.loader import product_forms, store_image


def write(request: ImageRequest, key: str) -> bool:
    """Write an image. Returns: whether the pool has it now. Raises: ModelError if the checkpoint cannot be read."""
    config = request.architecture()
    forms = product_forms(
        request.folder,
        torch.device("cpu"),
        native=True,
        coarse_drafts=request.coarse_drafts,
        short=request.short,
    )
    access = PoolAccess(lambda: request.view, request.secret, request.pool)
    images = access.model_cache(request.replica, request.node)
    assert images is not None, "the parent has one"
    try:
        dtype = getattr(torch, config.dtype if request.dtype == "auto" else request.dtype)
        return store_image(images, key, config, request.folder, dtype, forms)
    finally:
        images.close()


def main() -> None:
    """Carry out the request on standard input. Exits with 1 and the reason on standard error if that fails."""
    logging.basicConfig(format="%(message)s")
    request, key = pickle.load(sys.stdin.buffer)  # from the process that started this one
    try:
        sys.exit(0 if write(request, key) else 1)
    except ModelError as error:
        sys.exit(str(error))
