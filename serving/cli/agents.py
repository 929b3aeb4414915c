"""`cloudmatrix agents`: settings by which coding agents use a running system."""

import argparse
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from serving.cli.system_options import add_gateway_address, choose_gateway

DESCRIPTION = """\
Print what Codex, Claude Code, OpenCode and Qwen Code need to use a running system: their settings files, and
the command that starts each with them. With --write the files are written into a new folder; your own settings
of the agents stay as they are.
"""
EPILOG = """\
Examples:
  cloudmatrix serve --context 32768      in another terminal; --context 65536 for Qwen Code's first prompt
  cloudmatrix agents --write agents
  cloudmatrix agents claude --write agents && claude --settings agents/claude/settings.json -p "Say hello."
"""
_AGENTS = ("codex", "claude", "opencode", "qwen")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("agent", nargs="?", choices=_AGENTS, help="only this one (default: all)")
    parser.add_argument(
        "--write", type=Path, metavar="FOLDER", help="write the files into a folder of each agent below this one"
    )
    parser.add_argument("--force", action="store_true", help="with --write: replace files that differ")
    add_gateway_address(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print or write the settings.

    Raises: UnavailableError if no gateway responds; ConfigError if a file cannot be written.
    """
    from serving.client.coding_agents import AGENTS, ServedHere
    from serving.client.conversation import served_model
    from serving.errors import ConfigError

    if arguments.force and arguments.write is None:
        raise ConfigError("--force needs --write: without it no file is written")
    given = arguments.api_key  # that of the environment may be for another server: no file gets it
    choose_gateway(arguments)
    served = ServedHere(arguments.url, *served_model(arguments.url, arguments.api_key), given)
    for name in [arguments.agent] if arguments.agent else _AGENTS:
        agent = AGENTS[name]
        folder = (arguments.write or Path("agents")).resolve() / name
        files = agent.files(served, str(folder))
        if arguments.write is None:
            for file, text in files.items():
                print(f"# {agent.title}: {folder / file}\n{text}")
        else:
            _write(folder, files, force=arguments.force)
        key = "CLOUDMATRIX_API_KEY=... " if name == "codex" and served.api_key else ""
        print(f"{agent.title}: {key}{agent.command(shlex.quote(str(folder)))}")
        if shortfall := agent.shortfall(served):
            print(f"cloudmatrix: {shortfall}", file=sys.stderr)
    return 0


def _write(folder: Path, files: Mapping[str, str], *, force: bool) -> None:
    """Raises: ConfigError if a file is there with other contents, or cannot be written."""
    from serving.errors import ConfigError
    from serving.regular_file import read_regular

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            file = folder / name
            if not force and file.exists() and read_regular(file, most_bytes=1 << 20) != text.encode():
                raise ConfigError(f"{file} is there and differs: --force replaces it")
            file.touch(mode=0o600)  # it may hold a key
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written ({error.strerror}): give another folder") from error
