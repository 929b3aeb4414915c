"""Checks before the start. Does not import Ray, so that a mistake costs a moment and one line."""

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from safetensors import SafetensorError

from hardware.units import MIB
from serving.config.kv_events import KvEventsConfig
from serving.config.kvcache import KvCacheConfig
from serving.config.rank_checks import check_live_ranks
from serving.config.serve import ServeConfig
from serving.config.simulated_cost import accounted_kv, npu_of, simulated_cost
from serving.errors import ConfigError, ModelError, PoolError
from serving.gateway.api.settings import ServedModel
from serving.launch.machine import GATEWAY_PORT, enough_mib, require_free, require_places, require_room, warn_of_weights
from serving.model.architecture import Architecture
from serving.model.dense_form import served_architecture
from serving.model.quantization import Quantization
from serving.model.size import weight_bytes

logger = logging.getLogger(__name__)


def preflight(config: ServeConfig, *, own_ray: bool = True) -> None:
    """Check configuration, model and machine.

    Args:
        own_ray: whether Ray will be started, and the gateway listen, on this machine.
    Raises: SpecError (the simulated device, its engine or the model's shape cannot be read, or the model cannot
        draft), ConfigError (a port is in use, pyzmq is missing, a block is larger than a memory server, contexts are
        longer than
        supported, the weights are larger than an instance's HBM or this machine's memory, the folder of starts or of
        the SSD tier is not writable, the disk is full, the Redis does not respond, or as `check_live_ranks`),
        ModelError (the model folder or the tokenizer's cannot be served, or they do not belong together).
    Effects: creates the folder of the SSD tier.
    """
    check_live_ranks(config)
    if own_ray:
        require_places(config.gateway.host, config.gateway.port, GATEWAY_PORT, config.cluster)
        if config.cluster.gcs_storage.startswith("redis"):
            _require_redis(config.cluster.gcs_storage, "[cluster] gcs_storage")
    if config.kv_events.enabled:
        _require_events(config.kv_events, here=own_ray)
    if config.kvcache.replicas:
        _require_folder(config.kvcache)
        _require_directory(config.kvcache)
    model = served_architecture(config)
    _require_computed(config, model)
    _tell_longest(config, model)
    _require_tokenizer(config, model)
    accounted = accounted_kv(config)
    if accounted is not None:
        npu_of(simulated_cost(config).device)
    elif not any(config.model.path.glob("*.safetensors")):
        raise ModelError(f"{config.model.path} has no *.safetensors: give the folder of a Hugging Face checkpoint")
    else:
        _require_hbm(config, model, here=own_ray)
    if config.kvcache.replicas:
        _require_room(config, _block_bytes(config, model) if accounted is None else accounted.block_bytes)
    if own_ray and accounted is None:
        warn_of_weights(config, _weights(config, model))


def with_dies(config: ServeConfig, least_mib: int, tell: Callable[[str], None]) -> ServeConfig:
    """The configuration with virtual dies that hold its model.

    Args:
        least_mib: smallest size of a die [MiB].
        tell: receives a line if that is too small.
    Raises: ModelError, ConfigError if the model cannot be read.
    """
    weights = _weights(config, served_architecture(config))
    enough = enough_mib(config, weights)
    if enough > least_mib and weights:  # a folder without any is refused by `preflight`
        tell(f"virtual dies of {enough} MiB instead of {least_mib}, to hold {config.model.served_name}")
    return replace(config, hardware=replace(config.hardware, hbm_per_die_mib=max(enough, least_mib)))


def _require_computed(config: ServeConfig, model: Architecture) -> None:
    """Require that contexts are within the length that is implemented for the model."""
    limit, asked = model.computed_up_to, config.engine.max_model_len
    if limit is not None and asked > limit.tokens:
        raise ConfigError(
            f"[engine] max_model_len = {asked}: beyond {limit.tokens} tokens {limit.beyond} in a model of "
            f"{model.model_type}, which this server does not compute; set it to {limit.tokens} or less"
            + (f", or {limit.computed_by}" if limit.computed_by else "")
        )


def _tell_longest(config: ServeConfig, model: Architecture) -> None:
    """Log the maximum context length if it is below the model's own."""
    limit, asked = model.computed_up_to, config.engine.max_model_len
    if limit is not None:
        logger.warning(
            "contexts are limited to %d tokens: beyond %d %s in a model of %s, which this server does not compute%s",
            asked or limit.tokens,
            limit.tokens,
            limit.beyond,
            model.model_type,
            f"; {limit.computed_by} does" if limit.computed_by else "",
        )
    elif model.indexer is not None and config.engine.executor == "auto":
        logger.warning(
            "torch computes this model, slower than the native step, which has no sparse attention: contexts may be "
            "longer than %d tokens; [engine] max_model_len = %d lets the native step compute it",
            model.indexer.top_k,
            model.indexer.top_k,
        )


def _require_tokenizer(config: ServeConfig, model: Architecture) -> None:
    """Require that gateways can read tokenizer, chat template and end tokens, and that the model covers every token."""
    folder = config.model.tokenizer_folder
    setting = "[model] tokenizer" if config.model.tokenizer else "[model] path, its tokenizer"
    try:
        served = ServedModel.from_folder(folder, names=(folder.name,), max_model_len=1, created=0)
        if served.chat_template is not None:
            asyncio.run(served.chat_template.warm())
            served.chat_template.close()
    except ModelError as error:
        raise ModelError(f"{setting}: {error}") from error
    largest = served.tokenizer.vocab_size - 1
    if largest >= model.vocab_size:
        raise ModelError(
            f"{setting}: {folder / 'tokenizer.json'} has token {largest}, and the model has {model.vocab_size} "
            f"embedding rows: they do not match; use the model's own tokenizer, or a model with a row for each token"
        )


def _itemsize(config: ServeConfig, model: Architecture) -> int:
    return 2 if (model.dtype if config.model.dtype == "auto" else config.model.dtype) == "bfloat16" else 4


def _block_bytes(config: ServeConfig, model: Architecture) -> int:
    return len(model.layers) * config.engine.block_tokens * model.row.elements * _itemsize(config, model)


def _require_hbm(config: ServeConfig, model: Architecture, *, here: bool) -> None:
    """Require that the dies of each pool's instances hold the weights and one KV block; the error has the remedy."""
    require_room(config, _weights(config, model), _block_bytes(config, model), here=here)


def _weights(config: ServeConfig, model: Architecture) -> int:
    try:
        return weight_bytes(config.model.path, _itemsize(config, model))
    except (OSError, SafetensorError) as error:
        raise ModelError(f"a file of {config.model.path} cannot be read ({error}): fetch it again") from error


def check_before_fetch(config: ServeConfig, folder: Path | None, stored: int, *, own_ray: bool = True) -> None:
    """Check for obstacles to serving a model before its weights are downloaded.

    Args:
        folder: of the small files; None = these are missing too, and only space for the weights is checked.
        stored: size of the weight files to be downloaded [bytes]; a lower bound without a folder.
        own_ray: as `preflight`.
    Raises: ConfigError, ModelError, as `preflight`.
    """
    if folder is None:
        if config.model.dtype != "bfloat16":  # float32 files would need half of it
            require_room(config, stored, 0, here=own_ray)
        return
    config = replace(config, model=replace(config.model, path=folder))
    model = served_architecture(config)
    _require_computed(config, model)
    _require_tokenizer(config, model)
    halved = model.quantization == Quantization() and model.dtype == "float32" and _itemsize(config, model) == 2
    require_room(config, stored // 2 if halved else stored, _block_bytes(config, model), here=own_ray)


def _require_room(config: ServeConfig, block: int) -> None:
    if block > config.kvcache.ub_memory_mib * MIB:
        raise ConfigError(
            f"one KV block of this model takes {block} bytes, more than a memory server of"
            f" {config.kvcache.ub_memory_mib} MiB: raise [kvcache] ub_memory_mib or lower [engine] block_tokens"
        )


def _require_events(events: KvEventsConfig, *, here: bool) -> None:
    if find_spec("zmq") is None:
        raise ConfigError("[kv_events] needs pyzmq: pip install '.[events]'")
    for name, address in zip(("endpoint", "replay"), events.addresses(), strict=True):
        if here and address is not None:
            host, port = address
            require_free("0.0.0.0" if host == "*" else host, port, f"[kv_events] {name}")


def _require_folder(kvcache: KvCacheConfig) -> None:
    if not kvcache.ssd_path:
        return
    folder = Path(kvcache.ssd_path)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be created ({error.strerror}): change [kvcache] ssd_path") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"{folder} is not writable: make it writable, or change [kvcache] ssd_path")


def _require_directory(kvcache: KvCacheConfig) -> None:
    if kvcache.directory != "embedded":
        _require_redis(kvcache.directory, "[kvcache] directory")


def _require_redis(url: str, setting: str) -> None:
    from serving.kvpool.live.redis_store import RedisStore  # imported only where a Redis is used

    with RedisStore(url, "preflight", setting=setting) as store:
        try:
            store.ping()
        except PoolError as error:
            raise ConfigError(f"{error}: start it, or correct the address") from error
