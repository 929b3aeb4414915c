"""Files, batches and their runner, as a configuration describes them."""

import time
from collections.abc import Callable

from starlette.types import ASGIApp

from serving.config.serve import ServeConfig
from serving.gateway.api.batches.files import FileShelf
from serving.gateway.api.batches.shelf import BatchShelf
from serving.gateway.api.work_store import MemoryWorkStore
from serving.gateway.core.batches import BatchLimits
from serving.gateway.core.work_items import WorkLimits
from serving.gateway.live.batch_runner import BatchRunner
from serving.gateway.live.response_places import work_store
from serving.gateway.live.running_batch import BatchHost

LINE_GRACE_S = 60.0
"""Time of a batch's line besides its request's, for rendering and tokenizing its prompt."""


def batch_runner(
    config: ServeConfig,
    shelf: BatchShelf,
    owner: str,
    app: ASGIApp,
    salt_of: Callable[[str], bytes],
    busy: Callable[[], bool],
) -> BatchRunner:
    """The runner of a gateway. Arguments as of `BatchHost`."""
    limits = BatchLimits(config.batches.lines, config.batches.running, config.batches.requests)
    host = BatchHost(owner, app, salt_of, busy, config.gateway.request_timeout_s + LINE_GRACE_S, time.time)
    return BatchRunner(shelf, host, limits)


def batch_shelf(config: ServeConfig) -> BatchShelf:
    """Files and batches, in a Redis or in this gateway's memory.

    Raises: ConfigError if the address is invalid.
    Does not connect.
    """
    own = config.batches
    of_files = WorkLimits(own.files, own.files_mib << 20, own.kept_s)
    of_batches = WorkLimits(own.kept, seconds=own.kept_s)
    files, batches = [
        work_store(kind, config, limits) or MemoryWorkStore(limits, time.time)
        for kind, limits in (("file", of_files), ("batch", of_batches))
    ]
    return BatchShelf(batches, FileShelf(files, own.max_file_bytes), time.time)
