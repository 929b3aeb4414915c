"""`cloudmatrix serve`: a configuration's pools on this machine, until Ctrl-C, or on an existing Ray."""

import argparse
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.quantities import Duration
from serving.cli.options import add_address, add_engine, add_set, address_of, configured, tell
from serving.errors import ConfigError
from serving.shipped import DEFAULT_CONFIG

if TYPE_CHECKING:
    from serving.config.serve import ServeConfig

DESCRIPTION = """\
Start Ray with virtual NPUs on this machine, deploy the pools of a configuration, and serve until Ctrl-C.
With --address: deploy on a running Ray, on one host or many, and return when it serves; a second run upgrades it.
"""
EPILOG = """\
Examples:
  cloudmatrix serve smollm2 --detach                  a real model, in the background; `cloudmatrix stop` ends it
  cloudmatrix serve qwen2.5-0.5b-instruct-q8_0.gguf --context 4096
  cloudmatrix serve ~/my-deepseek --name assistant --set engine.kv_dtype=int8
  cloudmatrix serve --config deploy/two-nodes.toml --port 9000 --api-key-file keys.txt
  cloudmatrix serve --address auto --host 0.0.0.0     on one of the hosts of a Ray that was started with `ray start`
"""
_DIES = "hardware.hbm_per_die_mib"
_SECRETS = ("gateway.api_keys", "gateway.admin_keys", "kvcache.salt")

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", default=DEFAULT_CONFIG, help="TOML file (default: deploy/small.toml)"
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="instead of the file's model: a Hugging Face checkpoint folder, a GGUF file, smollm2, a name that"
        " `cloudmatrix models` lists, or org/name[@revision] of the Hugging Face Hub, which is downloaded",
    )
    parser.add_argument("--model", dest="model_flag", metavar="MODEL", help="the same")
    parser.add_argument(
        "--context",
        "--max-model-len",
        type=int,
        metavar="N",
        help="longest prompt plus answer [tokens] (default: the model's own limit); a longer one than the model was"
        " trained for scales its positions by YaRN, at some loss of quality",
    )
    parser.add_argument(
        "--name", "--served-model-name", metavar="NAME", help="what clients send as `model` (default: the model's own)"
    )
    parser.add_argument("--gpu", action="store_true", help="compute on this machine's GPU, or do not start")
    add_set(parser, "engine.draft_tokens=3")
    add_engine(parser)
    add_address(parser)
    parser.add_argument(
        "--detach",
        action="store_true",
        help="return once the system serves, which continues in the background; `cloudmatrix stop` ends it",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="with --address: only print what would restart and what would be updated in place",
    )
    parser.add_argument(
        "--host", metavar="ADDRESS", help="address to listen on, instead of the file's (default 127.0.0.1)"
    )
    parser.add_argument("--port", type=int, metavar="N", help="port to listen on, instead of the file's (default 8000)")
    parser.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="require one of these bearer tokens, one a line in a file"
    )
    parser.add_argument(
        "--api-key",
        action="append",
        metavar="KEY",
        help="require this bearer token; may be repeated; every user that can list processes sees it",
    )
    parser.add_argument(
        "--drain",
        type=Duration(),
        metavar="T",
        help="how long requests may continue after the first Ctrl-C or SIGTERM, instead of the file's (default 30s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM, or deploy on an existing Ray.

    Raises: ConfigError, or the error that prevents the start, in one line.
    """
    from serving.cli.key_environment import take_keys
    from serving.config.load import with_overrides

    address = address_of(arguments)
    if arguments.dry_run and not address:
        raise ConfigError("--dry-run needs --address: without it there is no running system to upgrade")
    _take_model(arguments, own_nodes=not address)
    if not address:
        _require_places(arguments)
    if arguments.detach:
        if address:
            raise ConfigError("--detach needs a Ray of its own: with --address the command returns by itself")
        from serving.launch.detached import start_detached

        return start_detached()
    config = with_overrides(
        configured(arguments, "deploy" if address else "serve", arguments.model),
        host=arguments.host,
        port=arguments.port,
        api_keys=tuple(arguments.api_key) if arguments.api_key else None,
        api_key_file=arguments.api_key_file,
        environment_keys=take_keys(),
        drain_s=arguments.drain,
    )
    _warn_of_shown_secrets(arguments)
    from serving.launch.machine import GATEWAY_PORT, reserved_port
    from serving.launch.preflight import preflight, with_dies
    from serving.terminal import endings_as_interrupt

    if arguments.least_dies is not None:
        config = with_dies(config, arguments.least_dies, tell)
    preflight(config, own_ray=not address)
    if address:
        from serving.launch.existing import dry_run, serve_on

        return dry_run(config, address) if arguments.dry_run else serve_on(config, address)
    with reserved_port(config.gateway.host, config.gateway.port, GATEWAY_PORT):
        from serving.cluster.session import enter
        from serving.cluster.start_clock import own_age_s
        from serving.launch.phases import LaunchPhases
        from serving.launch.worker_seed import WorkerSeed

        session = enter()  # before the import of Ray, which reads the environment
        seed = WorkerSeed(session.folder, _preloaded(config))
        phases = LaunchPhases(own_age_s())
        try:
            with endings_as_interrupt():
                from serving.launch.launch import serve_forever
        except BaseException:  # mostly Ctrl-C: the import of Ray takes seconds
            phases.close()
            seed.end()
            session.remove()
            raise
        return serve_forever(config, session, seed, phases)


def _preloaded(config: "ServeConfig") -> tuple[str, ...]:
    """Modules to import before workers are forked; torch (100 MiB) only if instances load weights themselves."""
    from serving.launch.worker_seed import NATIVE, PRELOADED, TORCH

    if config.engine.executor == "simulated":
        return PRELOADED
    of_pool = config.kvcache.replicas and config.kvcache.models and config.engine.executor != "torch"
    alone = not any(pool.is_group for pool in config.pools.values())
    return (*PRELOADED, NATIVE) if of_pool and alone else (*PRELOADED, NATIVE, TORCH)


def _take_model(arguments: argparse.Namespace, *, own_nodes: bool) -> None:
    """Read the flags about the model.

    Args:
        own_nodes: whether the system runs on the nodes of the file, and not on a Ray that is there.
    Raises: ConfigError if two are given, or there is no such model; ModelError.
    Effects: `arguments.model` is a folder or a model of the Hub; flags that stand for a key become settings, before
        those of --set; may import the model, or scale it to the context. `arguments.least_dies`: die size of the file
        [MiB], if it may be increased to fit the model; dies are virtual, and few users know a model's size.
    """
    if arguments.model is not None and arguments.model_flag is not None:
        raise ConfigError("MODEL and --model are the same: give one of them")
    flags = {"engine.max_model_len": arguments.context, "model.name": arguments.name}
    settings = [f"{key}={json.dumps(value)}" for key, value in flags.items() if value is not None]
    settings += ["model.device=cuda"] if arguments.gpu else []
    arguments.least_dies = None
    arguments.model = arguments.model_flag if arguments.model is None else arguments.model
    if arguments.model is not None:
        from serving.config.load import read_config
        from serving.tools.importing.models_here import choose_model

        chosen = choose_model(arguments.model, tell)
        arguments.model, settings = chosen.path, [*chosen.settings, *settings]
        sized = any(one.replace(" ", "").startswith(f"{_DIES}=") for one in arguments.set)
        of_file = 0 if sized else read_config(arguments.config, own_nodes=own_nodes).config.hardware.hbm_per_die_mib
        if of_file:  # 0 = a real die
            arguments.least_dies, settings = of_file, [*settings, f"{_DIES}=0"]
    settings += _scaled_model(arguments, own_nodes=own_nodes)
    arguments.set = [*settings, *arguments.set]


def _scaled_model(arguments: argparse.Namespace, *, own_nodes: bool) -> list[str]:
    """Settings for a context longer than the model's own; empty if it is not, or the model is not fetched yet.

    Raises: ConfigError, ModelError.
    Effects: may write the scaled model into the user's cache.
    """
    if arguments.context is None:
        return []
    from serving.config.load import read_config
    from serving.tools.importing.longer_context import with_context

    model = read_config(
        arguments.config, model=arguments.model, settings=arguments.set, own_nodes=own_nodes
    ).config.model
    if model.hub is not None:
        return []
    folder = with_context(model.path, arguments.context, tell)
    scaled = {"model.path": str(folder), "model.name": arguments.name or model.served_name}
    return [] if folder == model.path else [f"{key}={json.dumps(value)}" for key, value in scaled.items()]


def _require_places(arguments: argparse.Namespace) -> None:
    """Check that ports and the folder are available and warn about missing resources, before a model is fetched or
    expensive modules are imported.

    Raises: ConfigError if they are not, or the file or a setting is invalid.
    """
    from serving.cli.options import engine_setting
    from serving.config.load import read_config
    from serving.launch.machine import GATEWAY_PORT, require_places, warn_of_machine

    settings = [*arguments.set, *engine_setting(arguments)]
    config = read_config(arguments.config, model=arguments.model, settings=settings).config
    port = config.gateway.port if arguments.port is None else arguments.port
    require_places(arguments.host or config.gateway.host, port, GATEWAY_PORT, config.cluster)
    warn_of_machine(config)


def _warn_of_shown_secrets(arguments: argparse.Namespace) -> None:
    set_names = {setting.partition("=")[0].replace(" ", "") for setting in arguments.set}
    shown = [f"--set {name}" for name in _SECRETS if name in set_names] + ["--api-key"] * bool(arguments.api_key)
    for flag in shown:
        logger.warning("every user of this machine can read %s in the list of processes: use a file instead", flag)
