"""`cloudmatrix`: serve a model through the pools, look at a running system.

Heavy imports (Ray, torch) happen only in the command that needs them, so that `--help` and mistakes answer at once.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from hardware.errors import HardwareError
from serving.errors import ServingError
from serving.version import VERSION

DEFAULT_CONFIG = Path(__file__).resolve().parent.parent / "deploy" / "small.toml"
DEFAULT_URL = "http://127.0.0.1:8000"
EXIT_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns: exit code; 2 for mistakes that the user can correct, with one line on stderr."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        code: int = arguments.run(arguments)
    except (ServingError, HardwareError) as error:
        print(f"cloudmatrix: {error}", file=sys.stderr)
        return EXIT_USAGE
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cloudmatrix",
        description="Disaggregated LLM serving on virtual Ascend NPUs: prefill and decode pools behind one endpoint.",
        epilog="Start with `cloudmatrix serve`; it needs no network and no accelerator.",
    )
    parser.add_argument("--version", action="version", version=f"cloudmatrix {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_serve(commands)
    _add_status(commands)
    return parser


def _add_serve(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    serve = commands.add_parser(
        "serve",
        help="start a local cluster and serve a model until Ctrl-C",
        description="Start Ray with virtual NPUs in this machine, deploy a configuration's pools, serve until Ctrl-C.",
        epilog="Example: cloudmatrix serve --config deploy/two-nodes.toml --port 9000 --api-key s3cret",
    )
    serve.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="TOML file (default: deploy/small.toml)")
    serve.add_argument("--model", type=Path, help="Hugging Face checkpoint folder, instead of the file's")
    serve.add_argument("--host", help="address to listen on, instead of the file's (default 127.0.0.1)")
    serve.add_argument("--port", type=int, help="port to listen on, instead of the file's (default 8000)")
    serve.add_argument(
        "--api-key", action="append", metavar="KEY", help="require this bearer token; may be given more than once"
    )
    serve.set_defaults(run=_serve)


def _add_status(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    status = commands.add_parser(
        "status",
        help="pools, replicas, NPUs, HBM and queues of a running system",
        description="Ask a running gateway what there is, and print it as a table.",
    )
    status.add_argument("--url", default=DEFAULT_URL, help=f"the gateway's address (default {DEFAULT_URL})")
    status.add_argument("--api-key", metavar="KEY", help="when the gateway wants one")
    status.add_argument("--json", action="store_true", help="print the raw numbers instead of a table")
    status.set_defaults(run=_status)


def _serve(arguments: argparse.Namespace) -> int:
    from serving.config.load import load_config, with_overrides

    config = with_overrides(
        load_config(arguments.config),
        model=arguments.model,
        host=arguments.host,
        port=arguments.port,
        api_keys=tuple(arguments.api_key) if arguments.api_key else None,
    )
    from serving.deployments.preflight import preflight

    preflight(config)
    from serving.deployments.session import enter

    session = enter()  # before Ray is imported, which reads the environment
    from serving.deployments.launch import serve_forever

    return serve_forever(config, session)


def _status(arguments: argparse.Namespace) -> int:
    from serving.status_table import fetch_status, print_status

    status = fetch_status(arguments.url, arguments.api_key)
    print_status(status, as_json=arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
