"""Keys without effect in a configuration, and where they would have an effect.

A key set without effect is a silent misunderstanding, so each command that reads a topology file reports such keys
before it starts, and simulation commands refuse them as settings. `checks` refuses keys that contradict the mode; this
module handles the rest. The rules are in `inert_rules`; a test changes every key and expects either an effect or a
rule.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from serving.config.cluster import ClusterConfig, NodeConfig
from serving.config.inert_rule import VIRTUAL, Command, Rule
from serving.config.inert_rules import LIVE_ONLY, RULES
from serving.config.load import Loaded
from serving.config.serve import ServeConfig
from serving.errors import ConfigError

_LISTS = {"namespaces": "[[namespaces]]", "cluster.nodes": "[[cluster.nodes]]"}


def idle_lines(loaded: Loaded, command: Command) -> list[str]:
    """Messages about keys that were set and have no effect.

    Args:
        command: what the configuration was loaded for.
    Returns: one line for all keys with the same reason; empty if every key that was set has an effect.
    """
    return _lines(loaded, command, loaded.given)


def check_settings(loaded: Loaded, command: Command) -> None:
    """Refuse a `--set` without effect for commands in virtual time.

    A file may also describe a running system, but a setting is meant for this very command. Commands that start a
    system do not refuse it: `idle_lines` reports the key.

    Args:
        command: what the configuration was loaded for.
    Raises: ConfigError, one line with every such key, its reason and where it would work.
    """
    if command in VIRTUAL and (lines := _lines(loaded, command, loaded.by_setting)):
        raise ConfigError(f"--set: {'; '.join(lines)}")


def _lines(loaded: Loaded, command: Command, keys: Iterable[str]) -> list[str]:
    idle = idle_keys(loaded.config, command)
    named: dict[Rule, list[str]] = {}
    for key in sorted(keys, key=list(all_keys()).index):
        rule = idle.get(key)
        if rule is not None and (key in loaded.by_setting or not rule.only_settings):
            named.setdefault(rule, []).append(key)
    return [f"{_words(same)} {'have' if len(same) > 1 else 'has'} no effect {rule.why}" for rule, same in named.items()]


def idle_keys(config: ServeConfig, command: Command) -> Mapping[str, Rule]:
    """Every key that has no effect, set or not.

    Returns: for "section.key", the first rule that matches.
    """
    found = dict.fromkeys(live_only_keys(), LIVE_ONLY) if command in VIRTUAL else {}
    for rule in RULES:
        if command in rule.commands and rule.when(config):
            for key in expand(rule.keys):
                found.setdefault(key, rule)
    return found


def live_only_keys() -> list[str]:
    """Keys that their sections' `LIVE_ONLY` names: without effect in virtual time, whatever else is configured."""
    named = {kind: getattr(kind, "LIVE_ONLY", "") for kind in all_keys().values()}
    return [
        key for key, kind in all_keys().items() if named[kind] == "*" or key.rpartition(".")[2] in named[kind].split()
    ]


def expand(patterns: Iterable[str]) -> list[str]:
    """The keys that match the patterns "section.key" or "section.*".

    Raises: KeyError for a pattern that matches none.
    """
    known, keys = all_keys(), []
    for pattern in patterns:
        section, _, key = pattern.rpartition(".")
        found = [one for one in known if one.rpartition(".")[0] == section] if key == "*" else [pattern]
        if not found or any(one not in known for one in found):
            raise KeyError(pattern)
        keys += found
    return keys


@cache
def all_keys() -> Mapping[str, Any]:
    """Every key, as "section.key", with the class of its section, in the order of the documentation."""
    keys: dict[str, Any] = {}
    for section, hint in get_type_hints(ServeConfig).items():
        kind: Any = get_args(hint)[0] if get_origin(hint) is tuple else hint
        for declared in fields(kind):
            if kind is ClusterConfig and declared.name == "nodes":
                keys |= {f"cluster.nodes.{one.name}": NodeConfig for one in fields(NodeConfig)}
            else:
                keys[f"{section}.{declared.name}"] = kind
    return keys


def _words(keys: list[str]) -> str:
    """Keys by section: `[engine] threads, kv_dtype and [model] device`."""
    sections: dict[str, list[str]] = {}
    for key in keys:
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(name)
    parts = [f"{_LISTS.get(section, f'[{section}]')} {', '.join(names)}" for section, names in sections.items()]
    return " and ".join(parts)


def rounded_lines(loaded: Loaded, command: Command) -> list[str]:
    """Messages about limits of instances in virtual time that were set and are rounded: dies and NPUs have equal parts.

    Args:
        command: what the configuration was loaded for.
    Returns: one line for each such key, with the value that has an effect.
    """
    config, found = loaded.config, []
    if command not in VIRTUAL or config.one_pool or config.decode.ep > 1:
        return []
    decode, prefill, simulation = config.decode, config.prefill, config.simulation
    dies = decode.dies_per_instance
    parts = dies if command == "plan" else (dies - simulation.expert_dies) // simulation.decode_attention_tp
    each = max(1, decode.max_sequences // parts)
    whose = f"for each of {parts} dies" if parts == dies else f"for each of {parts} groups of dies"
    limits = [("decode.max_sequences", decode.max_sequences, each, parts, whose)]
    if command == "plan":
        tokens, npus = prefill.max_step_tokens, prefill.npus_per_instance
        each = max(1, tokens // npus)
        limits.append(("prefill.max_step_tokens", tokens, each, npus, f"for each of {npus} NPUs"))
    else:
        tokens = max(decode.max_step_tokens // parts, each)
        limits.append(("decode.max_step_tokens", decode.max_step_tokens, tokens, parts, whose))
    for key, given, one, count, text in limits:
        if one * count != given and key in loaded.given:
            found.append(f"{_words([key])} = {given:,} acts as {one * count:,}: {one:,} {text}")
    return found
