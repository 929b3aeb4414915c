"""Changes of a running system's configuration: which parties update in place, which are replaced, and for which keys.

Pure. Configurations are compared key by key as flat values, so that one written by an older version of this package can
be compared too: a key present in only one counts as changed.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from serving.config.effects import all_keys
from serving.config.kvcache import NamespaceConfig
from serving.config.serve import ServeConfig
from serving.config.upgrade_rules import (
    BEFORE_RAY,
    ENGINES,
    GATEWAY,
    KVCACHE,
    NO_DEPLOYMENTS,
    OF_SIMULATED_MEMORY,
    OWN_POOL,
    UpgradeRule,
    Upgrades,
)

Values = Mapping[str, Any]
"""By "section.key". For lists of tables, such as `[[namespaces]]`, a list of each key's values."""
Section = TypeVar("Section")

NEW_CODE = "new code"
WEIGHTS = "model.weights"
"""A value that is in no file: identifies the content of the model's weights, which may change in place."""


@dataclass(frozen=True, slots=True)
class UpgradePlan:
    """Consequences of an upgrade.

    Args:
        restarts: parties whose replicas are replaced, each with the reasons: keys, or `NEW_CODE`.
        in_place: parties that apply keys while running, each with the keys.
        idle: keys that take effect only after a restart of Ray.
    """

    restarts: Mapping[str, tuple[str, ...]]
    in_place: Mapping[str, tuple[str, ...]]
    idle: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The plan as text for people."""
        lines = [f"{party} restarts: {', '.join(why)}" for party, why in self.restarts.items()]
        lines += [
            f"{party} keeps running with new values of: {', '.join(keys)}" for party, keys in self.in_place.items()
        ]
        lines += [f"without effect but {BEFORE_RAY}: {', '.join(self.idle)}"] if self.idle else []
        return lines or ["nothing changes"]


def upgrade_plan(before: Values, after: Values, parties: Sequence[str], *, new_code: bool = False) -> UpgradePlan:
    """Compare the running configuration with the intended one.

    Args:
        parties: deployments of the system, in the order in which they are upgraded.
        new_code: the package itself has changed.
    """
    changed = [key for key in {**before, **after} if _missing(key, before, after) or before[key] != after[key]]
    restarts: dict[str, tuple[str, ...]] = {}
    in_place: dict[str, list[str]] = {}
    idle: list[str] = []
    for party in parties:
        why = [key for key in changed if _restarts(party, key, before, after)]
        why = [NEW_CODE, *why] if new_code else why
        if why:
            restarts[party] = tuple(why)
    for key in changed:
        rule = rules_by_key().get(key)
        if rule is None:
            continue
        for party in rule.in_place:
            if party not in restarts and (party in parties or party in NO_DEPLOYMENTS):
                in_place.setdefault(party, []).append(key)
        if not rule.restarts and not rule.in_place:
            idle.append(key)
    return UpgradePlan(restarts, {party: tuple(keys) for party, keys in in_place.items()}, tuple(idle))


def _missing(key: str, before: Values, after: Values) -> bool:
    return key not in before or key not in after


def _restarts(party: str, key: str, before: Values, after: Values) -> bool:
    """Whether a changed key is a reason to replace a party's replicas."""
    if _missing(key, before, after):
        rule = rules_by_key().get(key)
        return rule is None or party in rule.restarts
    return bool(_essence(party, key, before) != _essence(party, key, after))


def other_weights(before: Values, after: Values) -> bool:
    """Whether the weights are known to differ; False if either side is unknown."""
    names = {values.get(WEIGHTS) for values in (before, after)} - {None, ""}
    return len(names) > 1


def essence(party: str, values: Values) -> dict[str, Any]:
    """The part of a configuration that requires replacing a party's replicas if it changes."""
    found = {key: _essence(party, key, values) for key in values}
    return {key: value for key, value in found.items() if value is not None}


def _essence(party: str, key: str, values: Values) -> Any:  # noqa: ANN401 - any key's value
    """The part of a key's value that matters for a restart; None if nothing does."""
    rule, value = rules_by_key().get(key), values[key]
    if key == "kvcache.replicas":  # only whether the pool exists
        return [bool(value)] if party != KVCACHE else None
    if key == "gateway.replicas":  # a single gateway is placed on the head
        return [value == 1] if party == GATEWAY else None
    if rule is None or party in rule.restarts:
        return [value]
    simulated = party == KVCACHE and values.get("engine.executor") == "simulated" and key in OF_SIMULATED_MEMORY
    # The ranks of a group are not Serve replicas, so Serve cannot update them in place.
    group = values.get(f"{party}.ep", 1) > 1 or values.get(f"{party}.attention_ranks", 0) > 0
    of_ranks = party in ENGINES and party in rule.in_place and group
    return [value] if simulated or of_ranks else None


def version_of(party: str, values: Values, code: str) -> str:
    """Digest of everything that a party's replicas depend on; while it is equal, none has to be replaced.

    Args:
        code: identifies the package's files.
    """
    text = repr((code, sorted(essence(party, values).items())))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@cache
def rules_by_key() -> Mapping[str, UpgradeRule]:
    """The rule of each key, and of the weights, for which the same are replaced as for their folder."""
    found = {key: _rule(kind.UPGRADE, *key.rsplit(".", 1)) for key, kind in all_keys().items()}
    return found | {WEIGHTS: found["model.path"]}


def _rule(section_rules: Upgrades, section: str, name: str) -> UpgradeRule:
    """A key's rule; that of a pool's key names the pool."""
    rule = section_rules.of(name)
    return UpgradeRule(*(tuple(section if one == OWN_POOL else one for one in part) for part in astuple(rule)))


def values_of(config: ServeConfig) -> dict[str, Any]:
    """A configuration as flat JSON values; secrets are replaced with digests."""
    found: dict[str, Any] = {}
    for key in all_keys():
        section, _, name = key.rpartition(".")
        tables: Any = config.cluster.nodes if section == "cluster.nodes" else getattr(config, section)
        if isinstance(tables, tuple):
            found[key] = [_plain(table, name) for table in tables]
        else:
            found[key] = _plain(tables, name)
    return found


def _plain(section: Any, name: str) -> Any:  # noqa: ANN401 - any section, any key's value
    value = getattr(section, name)
    if isinstance(value, Path):
        return str(value)
    secret = not next(declared for declared in fields(section) if declared.name == name).repr
    if secret and isinstance(value, str):
        return value and hashlib.blake2b(value.encode(), digest_size=16).hexdigest()
    return list(value) if isinstance(value, tuple) else value


def live_values(party: str, config: ServeConfig) -> dict[str, Any]:
    """The keys that a party applies in place, as JSON values.

    Args:
        config: sealed, since Serve displays it.
    """
    values = values_of(config)
    return {key: values[key] for key, rule in rules_by_key().items() if party in rule.in_place}


def with_live(config: ServeConfig, live: Values) -> ServeConfig:
    """The configuration with its keys replaced with these; keys unknown to this version are ignored."""
    sections: dict[str, dict[str, Any]] = {}
    for key in live.keys() & all_keys().keys():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, {})[name] = live[key]
    tenants = sections.pop("namespaces", None)
    changed = {section: _changed(getattr(config, section), values) for section, values in sections.items()}
    if tenants is not None:
        rows = zip(*tenants.values(), strict=True)
        found = [NamespaceConfig(**dict(zip(tenants, row, strict=True))) for row in rows]
        changed["namespaces"] = tuple(replace(one, api_keys=tuple(one.api_keys)) for one in found)
    return replace(config, **changed)


def _changed(section: Section, values: Values) -> Section:
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return replace(section, **plain)  # type: ignore[type-var]
