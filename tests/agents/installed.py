"""The agents' programs: where npm has put them, and how each is run once without a terminal."""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from serving.client.coding_agents import AGENTS, ServedHere

PACKAGES = ("@openai/codex", "@anthropic-ai/claude-code", "opencode-ai", "@qwen-code/qwen-code")
_PLACES = {
    "codex": ("@openai/codex/bin/codex.js",),
    "claude": ("@anthropic-ai/claude-code-linux-x64/claude", ".bin/claude"),  # the former needs no script after install
    "opencode": ("opencode-linux-x64/bin/opencode", ".bin/opencode"),
    "qwen": ("@qwen-code/qwen-code/cli.js",),
}


@dataclass(frozen=True)
class Agent:
    """One installed agent.

    Args:
        program: its file.
        settings: folder of its settings.
        words: arguments of one run, with the prompt at its end.
        variables: of its environment.
    """

    name: str
    program: Path
    settings: Path
    words: Sequence[str]
    variables: dict[str, str]

    def command(self, prompt: str) -> list[str]:
        """The command line of a run."""
        start = ["node", str(self.program)] if self.program.suffix == ".js" else [str(self.program)]
        return [*start, *self.words, prompt]

    def with_words(self, *words: str) -> "Agent":
        """The same agent with further arguments."""
        return replace(self, words=[*self.words, *words])


def install(folder: Path) -> None:
    """Install all agents by npm, without their own install scripts, unless they are there."""
    if not all((folder / "node_modules" / package).exists() for package in PACKAGES):
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund", *PACKAGES]
        subprocess.run(command, check=True)


def find(name: str, modules: Path, served: ServedHere, folder: Path) -> Agent:
    """An agent with the settings that `cloudmatrix agents` writes.

    Args:
        modules: npm's folder.
        folder: for settings and for what the agent keeps; nothing of the user's is read or written.
    """
    program = next((modules / place for place in _PLACES[name] if (modules / place).exists()), None)
    settings = folder / name
    settings.mkdir(parents=True, exist_ok=True)
    for file, content in AGENTS[name].files(served, str(settings)).items():
        (settings / file).write_text(content)
    found = Path(shutil.which(name) or name) if program is None else program
    home = {"HOME": str(folder / "home"), "PATH": os.environ["PATH"], "TERM": "dumb"}
    (folder / "home").mkdir(exist_ok=True)
    words, variables = _RUNS[name](settings)
    return Agent(name, found, settings, words, home | variables)


def _codex(settings: Path) -> tuple[list[str], dict[str, str]]:
    words = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return words, {"CODEX_HOME": str(settings)}


def _claude(settings: Path) -> tuple[list[str], dict[str, str]]:
    words = ["--settings", str(settings / "settings.json"), "--dangerously-skip-permissions", "-p"]
    return words, {"IS_SANDBOX": "1"}  # otherwise it refuses root


def _opencode(settings: Path) -> tuple[list[str], dict[str, str]]:
    return ["run"], {"OPENCODE_CONFIG": str(settings / "opencode.json")}


def _qwen(settings: Path) -> tuple[list[str], dict[str, str]]:
    lines = (settings / ".env").read_text().replace("export ", "").splitlines()
    return ["--yolo", "-p"], dict(line.split("=", 1) for line in lines)


_RUNS: dict[str, Callable[[Path], tuple[list[str], dict[str, str]]]] = {
    "codex": _codex,
    "claude": _claude,
    "opencode": _opencode,
    "qwen": _qwen,
}
