"""`cloudmatrix serve`: a configuration's pools on this machine, until Ctrl-C, or on an existing Ray."""

import argparse
import logging
from pathlib import Path

from loadgen.quantities import Duration
from serving.cli.options import add_address, add_engine, add_set, address_of, configured
from serving.errors import ConfigError

DESCRIPTION = """\
Start Ray with virtual NPUs in this machine, deploy a configuration's pools, serve until Ctrl-C.
With --address: deploy on a Ray that is there, on one host or many, and return when it serves; once more is an upgrade.
"""
EPILOG = """\
Examples:
  cloudmatrix serve --config deploy/two-nodes.toml --port 9000 --api-key-file keys.txt
  cloudmatrix serve --model ~/my-deepseek --set hardware.hbm_per_die_mib=512 --set engine.kv_dtype=int8
  cloudmatrix serve --model deepseek-ai/DeepSeek-V2-Lite-Chat --set hardware.hbm_per_die_mib=8192
  cloudmatrix serve --address auto --host 0.0.0.0     on one of the hosts of a Ray that was started with `ray start`
"""
DEFAULT_CONFIG = Path(__file__).resolve().parents[2] / "deploy" / "small.toml"
_SECRETS = ("gateway.api_keys", "gateway.admin_keys", "kvcache.salt")

logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", default=DEFAULT_CONFIG, help="TOML file (default: deploy/small.toml)"
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="instead of the file's model: a Hugging Face checkpoint folder; or org/name or org/name@revision, if there"
        " is no such folder: fetched from the Hugging Face Hub",
    )
    add_set(parser, "engine.draft_tokens=3")
    add_engine(parser)
    add_address(parser)
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
        help="how long what runs may go on after the first Ctrl-C or SIGTERM, instead of the file's (default 30s)",
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
    if not address:
        _require_places(arguments)
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
    from serving.launch.preflight import preflight
    from serving.terminal import endings_as_interrupt

    preflight(config, own_ray=not address)
    if address:
        from serving.launch.existing import dry_run, serve_on

        return dry_run(config, address) if arguments.dry_run else serve_on(config, address)
    with reserved_port(config.gateway.host, config.gateway.port, GATEWAY_PORT):
        from serving.cluster.session import enter
        from serving.launch.worker_seed import COMPUTING, PRELOADED, WorkerSeed

        session = enter()  # before the import of Ray, which reads the environment
        computing = () if config.engine.executor == "simulated" else (COMPUTING,)
        seed = WorkerSeed(session.folder, (*PRELOADED, *computing))
        try:
            with endings_as_interrupt():
                from serving.launch.launch import serve_forever
        except BaseException:  # mostly Ctrl-C: the import of Ray takes seconds
            seed.end()
            session.remove()
            raise
        return serve_forever(config, session, seed)


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
