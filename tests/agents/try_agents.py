"""Real agents against loopback: `make try-agents`.

First each agent has a session of at least twelve turns with a scripted model behind our whole HTTP surface, in which it
uses its tools. Then each has a session with the bundled model on a real system: four turns that call tools, because a
proxy requires it (`forced_calls`), and an answer. The decode instance is killed in the middle of the third call. Needs
npm, or the folder where it has installed the agents.

Prints a line for each session: requests, those refused (HTTP 4xx, 5xx), streams without their last event, and runs of
the agent that failed or did not use all tools.

    python -m tests.agents.try_agents --agents build/agents codex claude
    python -m tests.agents.try_agents --record tests/cases/agent_sessions     writes the recordings of the tests anew
"""

import argparse
import json
import shutil
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from serving.client.coding_agents import ServedHere
from serving.launch.patience import load_and_cores, slowness
from tests.agents import scripts
from tests.agents.forced_calls import forced_calls
from tests.agents.installed import Agent, find, install
from tests.agents.recording import compacted
from tests.agents.scripted_server import Exchange, recording_proxy, scripted_server

LONGEST_S = 240.0
"""Time limit of one run of an agent on an idle machine: the bundled model's last answer may have 16,384 tokens."""
CONTEXT = 65_536
"""Of the real system: the first prompt of Qwen Code needs it."""
LAST_EVENTS = {
    "/v1/responses": b"event: response.completed",
    "/v1/messages": b"event: message_stop",
    "/v1/chat/completions": b"data: [DONE]",
}


@dataclass(frozen=True)
class Trial:
    """A scripted session of an agent.

    Args:
        agent: its name on the command line of `cloudmatrix agents`.
        prompts: one run for each; further ones continue the first.
    """

    name: str
    agent: str
    script: Callable[[str], scripts.Script]
    prompts: Sequence[str] = ("Do the task.",)


TRIALS = (
    Trial("codex", "codex", scripts.codex),
    Trial("codex-code-mode", "codex", scripts.codex_code_mode),
    Trial("claude", "claude", scripts.claude, ("Do the task.", "/compact", "Anything else?")),
    Trial("opencode", "opencode", scripts.opencode),
    Trial("qwen", "qwen", scripts.qwen),
)


def main() -> int:
    """Run the agents named on the command line. Returns: 1 if anything was refused or failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", choices=[[], *(one.name for one in TRIALS)], help="only these (default: all)"
    )
    parser.add_argument("--agents", type=Path, default=Path("build/agents"), help="folder in which npm installs them")
    parser.add_argument("--work", type=Path, default=Path("build/agents-work"), help="folder for settings and files")
    parser.add_argument("--port", type=int, default=18_400, help="of the real system")
    parser.add_argument("--only", choices=("scripted", "real"), help="only this part")
    parser.add_argument("--record", type=Path, help="write recordings of Codex and Claude Code into this folder")
    arguments = parser.parse_args()
    install(arguments.agents)
    modules, work = (arguments.agents / "node_modules").resolve(), arguments.work.resolve()
    trials = [one for one in TRIALS if not arguments.names or one.name in arguments.names]
    print(f"{'agent':<16} {'model':<12} {'turns':>5} {'refused':>7} {'broken':>6} {'failed':>6} {'s':>6}")
    bad = 0
    if arguments.only != "real":
        bad += sum(scripted(trial, modules, work, arguments.record) for trial in trials)
    if arguments.only != "scripted":
        bad += real(trials, modules, work, arguments.port)
    return 1 if bad else 0


def scripted(trial: Trial, modules: Path, work: Path, record: Path | None) -> int:
    """One scripted session. Returns: number of problems."""
    folder = project(work)
    with scripted_server(trial.script(str(folder))) as server:
        agent = prepared(trial, modules, ServedHere(server.url, "storyteller", 131_072), work)
        begun, failed = time.monotonic(), 0
        for number, prompt in enumerate(trial.prompts):
            again = agent.with_words("--continue") if number else agent
            failed += run(again, prompt, folder, work / f"{trial.name}-{number}.log")
        if record is not None and trial.agent in ("codex", "claude"):
            lines = compacted(server.requests(), str(folder))
            (record / f"{trial.name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        return tell(trial.name, "scripted", server.exchanges, failed, time.monotonic() - begun)


def real(trials: Sequence[Trial], modules: Path, work: Path, port: int) -> int:
    """A session each on a real system, in one of whose calls the decode instance dies. Returns: number of problems."""
    url, bad = f"http://127.0.0.1:{port}", 0
    command = [sys.executable, "-m", "serving.cli"]
    serve = [*command, "serve", "--context", str(CONTEXT), "--port", str(port), "--detach"]
    subprocess.run(serve, check=True, stdout=subprocess.DEVNULL)
    try:
        for trial in trials:
            folder = project(work)
            calls, before = forced_calls(trial.name, str(folder), url), resumptions(url)
            with recording_proxy(url, calls) as server:
                agent = prepared(trial, modules, ServedHere(server.url, "storyteller", CONTEXT), work)
                begun = time.monotonic()
                failed = run(agent, "Do the task.", folder, work / f"{trial.name}-real.log")
                missing = not calls.killed or calls.turns <= len(calls.calls)
                bad += tell(trial.name, "storyteller", server.exchanges, failed or missing, time.monotonic() - begun)
                moved = f"{resumptions(url) - before:.0f} continued elsewhere"
                print(f"    {calls.turns} turns with tools; {calls.killed or 'nothing killed'}; {moved}")
    finally:
        subprocess.run([*command, "stop", "--url", url], check=False)
    return bad


def resumptions(url: str) -> float:
    """Answers that the system has continued on another instance so far."""
    lines = httpx.get(f"{url}/metrics", timeout=10).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("cloudmatrix:resumptions_total"))


def prepared(trial: Trial, modules: Path, served: ServedHere, work: Path) -> Agent:
    """The agent with its settings."""
    agent = find(trial.agent, modules, served, work)
    if trial.name == "codex-code-mode":
        take_catalogue(agent, served, code_mode=True)
    elif trial.name == "codex" and served.context > CONTEXT:
        take_catalogue(agent, served, code_mode=False)
    return agent


def take_catalogue(agent: Agent, served: ServedHere, *, code_mode: bool) -> None:
    """Describe our model to Codex as it describes its provider's: the prompts and tools of that model."""
    own = agent.settings.parent / "codex-own"  # without a catalogue of ours
    own.mkdir(exist_ok=True)
    command = [*replace(agent, words=["debug"]).command("models")]
    shown = subprocess.run(command, env=agent.variables | {"CODEX_HOME": str(own)}, capture_output=True, check=True)
    models = json.loads(shown.stdout)["models"]
    model = next(one for one in models if (one.get("tool_mode") == "code_mode_only") == code_mode)
    model |= {"slug": served.model, "upgrade": None}
    model |= dict.fromkeys(("context_window", "max_context_window"), served.context)
    (agent.settings / "catalog.json").write_text(json.dumps({"models": [model]}))
    config = agent.settings / "config.toml"
    if served.context > CONTEXT:  # so that the session compacts
        limit = f"model_auto_compact_token_limit = {40_000 if code_mode else 30_000}\n"
        text = config.read_text().replace('web_search = "disabled"\n', "")
        # Codex asks only its own provider for compaction by the server.
        config.write_text(limit + (text.replace("CloudMatrix-Infer", "OpenAI") if code_mode else text))


def run(agent: Agent, prompt: str, folder: Path, log: Path) -> int:
    """One run of an agent. Returns: 1 if it failed."""
    with log.open("wb") as out:
        try:
            ended = subprocess.run(
                agent.command(prompt), cwd=folder, env=agent.variables, stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, timeout=LONGEST_S * slowness(*load_and_cores()), check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return 1
    return int(ended.returncode != 0)


def tell(name: str, model: str, exchanges: Sequence[Exchange], failed: int, seconds: float) -> int:
    """Print an agent's line. Returns: number of problems."""
    refused = [one for one in exchanges if one.status >= 400]
    broken = [
        one for one in exchanges
        if one.status == 200 and one.body.get("stream") and LAST_EVENTS.get(one.path, b"") not in one.answer
    ]  # fmt: skip
    print(f"{name:<16} {model:<12} {len(exchanges):>5} {len(refused):>7} {len(broken):>6} {failed:>6} {seconds:>6.1f}")
    for one in (*refused, *broken):
        print(f"    {one.path} {one.status} {one.answer[-300:]!r}")
    return len(refused) + len(broken) + failed


def project(work: Path) -> Path:
    """A small folder to work in: a text and a picture."""
    folder = work / "project"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / "README").write_text("This folder holds a small project.\nIt has one file.\n")

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress((b"\0" + b"\xff\0\0" * 4) * 4)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, 2, 0, 0, 0))
    (folder / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", rows) + chunk(b"IEND", b""))
    return folder


if __name__ == "__main__":
    sys.exit(main())
