"""Every command and flag, generated from the parsers.

Not from the output of `--help`, whose form differs between versions of Python.
"""

import argparse
import importlib
from collections.abc import Iterator

import loadgen.cli.main as loadgen_cli
from docs.reference_pages.markdown import made_by_a_script, table
from loadgen.exit_codes import MEANINGS, ExitCode
from loadgen.server_address import DEFAULT_URL, KEY_VARIABLE
from serving.cli import command_parser
from serving.cli.command_line import COMMANDS

HEAD = """Two programs: `cloudmatrix` runs and simulates the system, `loadgen` loads any OpenAI-compatible server.
`--help` of each command prints the same.

- **`--url`** is the server's address in both. Without it, they use the system that you run on this machine, else
  `{url}`. A key is that of `--api-key`, else of `{key}`.
- **Durations** are `500ms`, `30s`, `2min`, `1h30m`; sizes `512MiB`, `1.5GiB`.
- **Colours** appear on a terminal only. `NO_COLOR=1` turns them off, `FORCE_COLOR=1` on.

The exit code says how a command ended:"""


def commands() -> str:
    """The page."""
    head = HEAD.format(url=DEFAULT_URL, key=KEY_VARIABLE)
    codes = table(("code", "meaning"), [(str(code.value), MEANINGS[code]) for code in ExitCode])
    return "\n".join([made_by_a_script("Commands", head), codes, *_cloudmatrix(), *_loadgen()])


def _cloudmatrix() -> Iterator[str]:
    parser = command_parser()
    (below,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for name in COMMANDS:
        yield from _command(f"cloudmatrix {name}", COMMANDS[name], below.choices[name])


def _loadgen() -> Iterator[str]:
    for name, text in loadgen_cli.COMMANDS.items():
        parser = argparse.ArgumentParser(prog=f"loadgen {name}", allow_abbrev=False)
        importlib.import_module(f"loadgen.cli.{name}_command").add_flags(parser)
        yield from _command(f"loadgen {name}", text, parser)


def _command(title: str, summary: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """One command: its purpose, its flags by group, examples; its subcommands follow."""
    yield f"## {title}\n"
    yield f"{(parser.description or f'{summary.capitalize()}.').strip()}\n"
    deeper = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    rows: dict[str, list[tuple[str, str]]] = {}
    for group in parser._action_groups:
        title_of_group = "" if group.title in ("positional arguments", "options", None) else group.title
        rows.setdefault(title_of_group, []).extend(
            _row(action, parser) for action in filter(_is_shown, group._group_actions)
        )
    yield from (table((name, "meaning"), group) for name, group in rows.items() if group)
    if parser.epilog:
        yield f"```text\n{parser.epilog.strip()}\n```\n"
    for action in deeper:
        texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, below in action.choices.items():
            yield from _command(f"{title} {name}", texts.get(name, ""), below)


def _is_shown(action: argparse.Action) -> bool:
    unsaid = (argparse._HelpAction, argparse._SubParsersAction)
    return action.help != argparse.SUPPRESS and not isinstance(action, unsaid)


def _row(action: argparse.Action, parser: argparse.ArgumentParser) -> tuple[str, str]:
    """A flag as it is written, and its meaning."""
    value = _value(action)
    names = action.option_strings or [value]
    written = ", ".join(names) + (f" {value}" if action.option_strings and value else "")
    known = {"default": action.default, "prog": parser.prog, "choices": action.choices, "type": action.type}
    meaning = (action.help or "") % {**vars(action), **known}
    return f"`{written}`", " ".join(meaning.split())


def _value(action: argparse.Action) -> str:
    """Placeholder of the value behind a flag; empty for a switch."""
    if action.nargs == 0:
        return ""
    choices = None if action.choices is None else "{" + ",".join(map(str, action.choices)) + "}"
    name = action.metavar or choices or action.dest.upper()
    one = name if isinstance(name, str) else " ".join(name)
    return {"*": f"[{one} ...]", "+": f"{one} [{one} ...]", "?": f"[{one}]"}.get(str(action.nargs), one)
