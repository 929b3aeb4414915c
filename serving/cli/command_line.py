"""`cloudmatrix`: serve a model through the pools, look at a running system.

Heavy imports (Ray, torch) happen only in the command that needs them, so that `--help` and mistakes answer at once.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from hardware.errors import HardwareError
from loadgen.quantities import Duration, Size
from serving.cli import chaos, cost, decisions, evaluate, plan, quantize, replay, reproduce, scale, simulate
from serving.cli import compile as compile_command
from serving.cli.http_question import server_address
from serving.cli.set_option import add_set, configured
from serving.errors import ServingError
from serving.version import VERSION

logger = logging.getLogger(__name__)

DEFAULT_CONFIG = Path(__file__).resolve().parents[2] / "deploy" / "small.toml"
DEFAULT_URL = "http://127.0.0.1:8000"
_SECRETS = ("gateway.api_keys", "gateway.admin_keys", "kvcache.salt")
EXIT_PROBLEM = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
"""As shells count a command that SIGINT has ended."""
EXIT_UNREAD = 141
"""As they count one that SIGPIPE has ended: whoever read its output is gone."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns: exit code; 1 when an audit found something, 2 for mistakes that the user can correct, told in one line,
        130 after Ctrl-C, 141 when nobody reads the output any more.
    """
    arguments = command_parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()  # here, where it is known what to do if nobody reads it
    except (ServingError, HardwareError) as error:
        print(f"cloudmatrix: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("cloudmatrix: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        from serving.terminal import silence

        silence(sys.stdout)
        return EXIT_UNREAD
    return code


def command_parser() -> argparse.ArgumentParser:
    """All commands with their flags.

    Returns: a parser whose answer has `run`, what `main` calls.
    Effects: none.
    """
    parser = argparse.ArgumentParser(
        prog="cloudmatrix",
        description="Disaggregated LLM serving on virtual Ascend NPUs: pools for prefill, decode and KV cache.",
        epilog="Start with `cloudmatrix serve`; it needs no network and no accelerator.",
    )
    parser.add_argument("--version", action="version", version=f"cloudmatrix {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_serve(commands)
    _add_status(commands)
    _add_pool(commands)
    scale.add_command(commands)
    decisions.add_command(commands)
    replay.add_command(commands)
    cost.add_command(commands)
    quantize.add_command(commands)
    evaluate.add_command(commands)
    simulate.add_command(commands)
    reproduce.add_command(commands)
    plan.add_command(commands)
    compile_command.add_command(commands)
    chaos.add_command(commands)
    return parser


def _add_serve(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    serve = commands.add_parser(
        "serve",
        help="start a local cluster and serve a model until Ctrl-C",
        description="Start Ray with virtual NPUs in this machine, deploy a configuration's pools, serve until Ctrl-C.",
        epilog=(
            "Examples: cloudmatrix serve --config deploy/two-nodes.toml --port 9000 --api-key-file keys.txt; "
            "cloudmatrix serve --model ~/my-deepseek --set hardware.hbm_per_die_mib=512 --set engine.kv_dtype=int8"
        ),
    )
    serve.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="TOML file (default: deploy/small.toml)")
    serve.add_argument("--model", type=Path, help="Hugging Face checkpoint folder, instead of the file's model")
    add_set(serve, "engine.draft_tokens=3")
    serve.add_argument("--host", help="address to listen on, instead of the file's (default 127.0.0.1)")
    serve.add_argument("--port", type=int, help="port to listen on, instead of the file's (default 8000)")
    serve.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="require one of these bearer tokens, one a line in a file"
    )
    serve.add_argument(
        "--api-key",
        action="append",
        metavar="KEY",
        help="require this bearer token; may be given more than once; whoever lists processes sees it",
    )
    serve.add_argument(
        "--drain",
        type=Duration(),
        metavar="T",
        help="how long what runs may go on after the first Ctrl-C or SIGTERM, instead of the file's (default 30s)",
    )
    serve.set_defaults(run=_serve)


def _add_status(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    status = commands.add_parser(
        "status",
        help="pools, replicas, NPUs, HBM and queues of a running system",
        description="Ask a running gateway what there is, and print it as a table.",
    )
    _add_gateway_options(status)
    status.set_defaults(run=_status)


def _add_pool(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    pool = commands.add_parser(
        "pool",
        help="the KV-cache pool: its servers, how full they are, what is found there",
        description=(
            "Show the KV-cache pool of a running system: each memory server's share of the ring and of new blocks "
            "(weight), how full its memory and its SSD tier are, what was found there, and who holds how much."
        ),
        epilog=(
            "With a tenant's key you see that tenant's namespace; with one of `[gateway] admin_keys`, or on a server "
            "without keys, all. Examples: cloudmatrix pool --json; cloudmatrix pool audit; cloudmatrix pool forget acme"
        ),
    )
    _add_gateway_options(pool)
    pool.set_defaults(run=_pool)
    actions = pool.add_subparsers(metavar="ACTION", title="actions", description="without one: show the pool")
    audit = actions.add_parser(
        "audit",
        help="prove that ledgers, memory and SSD folders agree",
        description="Let every memory server compare its ledger, the bytes in memory and its SSD folder.",
        epilog="Exit code: 0 = sound, 1 = something was found or a server did not answer, 2 = the question failed.",
    )
    audit.add_argument("--repair", action="store_true", help="remove what is wrong; it will be computed again")
    forget = actions.add_parser(
        "forget",
        help="delete a namespace's cache",
        description="Delete all blocks of a namespace from the pool. Requests under way compute again what they miss.",
    )
    forget.add_argument("namespace", metavar="NAMESPACE", help="whose cache; needs its key, or an admin key")
    quota = actions.add_parser(
        "quota",
        help="change a namespace's quota and weight while the system runs",
        description="Change what a namespace may hold, and its share where requests wait; needs an admin key.",
        epilog="The change wins over the configuration file until that file says something else of this namespace.",
    )
    quota.add_argument("namespace", metavar="NAMESPACE", help="whose quota")
    quota.add_argument(
        "--mib",
        type=Size("MiB"),
        metavar="SIZE",
        help="most that it may hold, memory and SSD together, e.g. 512 (MiB) or 2GiB; 0 = no limit",
    )
    quota.add_argument("--weight", type=float, help="of each of its keys where requests wait for their turn")
    for action, run in ((audit, _pool_audit), (forget, _pool_forget), (quota, _pool_quota)):
        _add_gateway_options(action, inherited=True)
        action.set_defaults(run=run)


def _add_gateway_options(parser: argparse.ArgumentParser, *, inherited: bool = False) -> None:
    """Where the gateway is.

    Args:
        inherited: the parser above has these too; only what is given here may override what was given there.
    """

    def default(value: object) -> object:
        return argparse.SUPPRESS if inherited else value

    url_help = f"the gateway's address, with or without http:// (default {DEFAULT_URL})"
    parser.add_argument("--url", type=server_address, default=default(DEFAULT_URL), help=url_help)
    parser.add_argument("--api-key", metavar="KEY", default=default(None), help="when the gateway wants one")
    json_help = "print the raw numbers instead of a table"
    parser.add_argument("--json", action="store_true", default=default(False), help=json_help)


def _serve(arguments: argparse.Namespace) -> int:
    from serving.cli.key_environment import take_keys
    from serving.config.load import with_overrides

    config = with_overrides(
        configured(arguments, "serve", arguments.model),
        host=arguments.host,
        port=arguments.port,
        api_keys=tuple(arguments.api_key) if arguments.api_key else None,
        api_key_file=arguments.api_key_file,
        environment_keys=take_keys(),
        drain_s=arguments.drain,
    )
    _warn_of_shown_secrets(arguments)
    from serving.deployments.ports import GATEWAY_PORT, reserved_port
    from serving.deployments.preflight import preflight
    from serving.terminal import endings_as_interrupt

    preflight(config)
    with reserved_port(config.gateway.host, config.gateway.port, GATEWAY_PORT):
        from serving.deployments.session import enter

        session = enter()  # before Ray is imported, which reads the environment
        try:
            with endings_as_interrupt():
                from serving.deployments.launch import serve_forever
        except BaseException:  # Ctrl-C, mostly: Ray takes seconds to import
            session.remove()
            raise
        return serve_forever(config, session)


def _warn_of_shown_secrets(arguments: argparse.Namespace) -> None:
    set_names = {setting.partition("=")[0].replace(" ", "") for setting in arguments.set}
    shown = [f"--set {name}" for name in _SECRETS if name in set_names] + ["--api-key"] * bool(arguments.api_key)
    for flag in shown:
        logger.warning("every user of this machine can read %s in the list of processes: use a file instead", flag)


def _status(arguments: argparse.Namespace) -> int:
    from serving.cli.status_table import fetch_status, print_status

    status = fetch_status(arguments.url, arguments.api_key)
    print_status(status, as_json=arguments.json)
    return 0


def _pool(arguments: argparse.Namespace) -> int:
    from serving.cli.pool_table import fetch_pool, print_json, print_pool

    pool = fetch_pool(arguments.url, arguments.api_key)
    (print_json if arguments.json else print_pool)(pool)
    return 0


def _pool_audit(arguments: argparse.Namespace) -> int:
    from serving.cli.pool_table import audit_pool, print_audit, print_json

    audit = audit_pool(arguments.url, arguments.api_key, repair=arguments.repair)
    (print_json if arguments.json else print_audit)(audit)
    return 0 if audit["ok"] else EXIT_PROBLEM


def _pool_forget(arguments: argparse.Namespace) -> int:
    from serving.cli.pool_table import forget_namespace, print_forgotten, print_json

    answer = forget_namespace(arguments.url, arguments.api_key, arguments.namespace)
    (print_json if arguments.json else print_forgotten)(answer)
    return 0


def _pool_quota(arguments: argparse.Namespace) -> int:
    from serving.cli.pool_table import print_json, print_quota, set_quota

    answer = set_quota(arguments.url, arguments.api_key, arguments.namespace, arguments.mib, arguments.weight)
    (print_json if arguments.json else print_quota)(answer)
    return 0
