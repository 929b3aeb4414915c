"""Settings by which coding agents use a gateway: what each reads, for one model and address.

Codex          /v1/responses           config.toml, and a catalogue with the model's context and tools
Claude Code    /v1/messages            settings.json, with environment variables
OpenCode       /v1/chat/completions    opencode.json
Qwen Code      /v1/chat/completions    .env, and settings.json with the model's context
"""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

PLACEHOLDER_KEY = "none"
"""Instead of a key where the gateway requires none: the agents do not start without."""
KEY_VARIABLE = "CLOUDMATRIX_API_KEY"
_OUTPUT_SHARE = 4
"""Divisor of the context for the longest answer."""
_CODEX_INSTRUCTIONS = (
    "You are a coding agent in a terminal. Read the files that matter before you change them, make the smallest change "
    "that solves the task, edit files with apply_patch, run the tests if there are any, and say briefly what you did."
)


@dataclass(frozen=True, slots=True)
class ServedHere:
    """Facts about a gateway that an agent needs.

    Args:
        url: its base address, without /v1.
        model: served name.
        context: longest prompt plus answer [tokens].
        api_key: None if it requires none.
    """

    url: str
    model: str
    context: int
    api_key: str | None = None

    @property
    def key(self) -> str:
        """The key to send."""
        return self.api_key or PLACEHOLDER_KEY

    @property
    def output(self) -> int:
        """Longest answer to ask for [tokens]."""
        return max(256, self.context // _OUTPUT_SHARE)


@dataclass(frozen=True, slots=True)
class CodingAgent:
    """One agent.

    Args:
        title: its own name.
        first_prompt: tokens of its first request, with the tokenizer of the bundled model, measured in November 2026;
            0 = not measured.
        files: contents by file name, for a gateway and the folder that will hold them.
        command: shell command that starts it with these files.
    """

    title: str
    first_prompt: int
    files: Callable[[ServedHere, str], Mapping[str, str]]
    command: Callable[[str], str]

    @property
    def context(self) -> int:
        """Smallest context in which its first request fits, of those that a command line would name [tokens]."""
        lengths = (length for doublings in range(8) if (length := 32_768 << doublings))
        return next(length for length in lengths if self.first_prompt + ServedHere("", "", length).output <= length)

    def shortfall(self, served: ServedHere) -> str:
        """Why its first request would be refused; empty if it fits."""
        if not self.first_prompt or self.first_prompt + served.output <= served.context:
            return ""
        return (
            f"{self.title} begins with a prompt of some {self.first_prompt:,} tokens, and {served.model} has a context"
            f" of {served.context:,}: start the server with --context {self.context}"
        )


def _codex(served: ServedHere, folder: str) -> dict[str, str]:
    config = [
        f"model = {json.dumps(served.model)}",
        'model_provider = "cloudmatrix"',
        f"model_catalog_json = {json.dumps(f'{folder}/catalog.json')}",
        'web_search = "disabled"',
        "",
        "[model_providers.cloudmatrix]",
        'name = "CloudMatrix-Infer"',
        f"base_url = {json.dumps(f'{served.url}/v1')}",
        'wire_api = "responses"',
    ]
    config += [f"env_key = {json.dumps(KEY_VARIABLE)}"] if served.api_key else []
    model = {
        "slug": served.model,
        "display_name": served.model,
        "description": "served by CloudMatrix-Infer",
        "supported_reasoning_levels": [],
        "shell_type": "unified_exec",
        "visibility": "list",
        "supported_in_api": True,
        "priority": 0,
        "apply_patch_tool_type": "freeform",
        "truncation_policy": {"mode": "tokens", "limit": max(500, served.context // 16)},
        "context_window": served.context,
        "max_context_window": served.context,
        "effective_context_window_percent": 90,
        "experimental_supported_tools": [],
        "input_modalities": ["text"],
        "support_verbosity": False,
        "base_instructions": _CODEX_INSTRUCTIONS,
    }
    return {"config.toml": "\n".join(config) + "\n", "catalog.json": _json({"models": [model]})}


def _claude(served: ServedHere, _folder: str) -> dict[str, str]:
    environment = {
        "ANTHROPIC_BASE_URL": served.url,
        "ANTHROPIC_AUTH_TOKEN": served.key,
        "ANTHROPIC_MODEL": served.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": served.model,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(served.context),  # otherwise it assumes a million
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(served.output),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return {"settings.json": _json({"env": environment})}


def _opencode(served: ServedHere, _folder: str) -> dict[str, str]:
    limit = {"context": served.context, "output": served.output}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "CloudMatrix-Infer",
        "options": {"baseURL": f"{served.url}/v1", "apiKey": served.key},
        "models": {served.model: {"name": served.model, "limit": limit}},
    }
    config = {"$schema": "https://opencode.ai/config.json", "provider": {"cloudmatrix": provider}}
    return {"opencode.json": _json({**config, "model": f"cloudmatrix/{served.model}"})}


def _qwen(served: ServedHere, folder: str) -> dict[str, str]:
    variables = {
        "OPENAI_BASE_URL": f"{served.url}/v1",
        "OPENAI_API_KEY": served.key,
        "OPENAI_MODEL": served.model,
        "QWEN_CODE_MAX_OUTPUT_TOKENS": str(served.output),
        "QWEN_CODE_SYSTEM_DEFAULTS_PATH": f"{folder}/settings.json",
    }
    settings = {
        "security": {"auth": {"selectedType": "openai"}},
        "model": {"generationConfig": {"contextWindowSize": served.context}},  # otherwise it assumes 131,072
    }
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    return {".env": exports, "settings.json": _json(settings)}


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


AGENTS: Mapping[str, CodingAgent] = {
    "codex": CodingAgent("Codex", 9_600, _codex, lambda folder: f"CODEX_HOME={folder} codex"),
    "claude": CodingAgent("Claude Code", 21_100, _claude, lambda folder: f"claude --settings {folder}/settings.json"),
    "opencode": CodingAgent(
        "OpenCode", 13_000, _opencode, lambda folder: f"OPENCODE_CONFIG={folder}/opencode.json opencode"
    ),
    "qwen": CodingAgent("Qwen Code", 28_100, _qwen, lambda folder: f". {folder}/.env && qwen"),
}
"""By the word on the command line."""
