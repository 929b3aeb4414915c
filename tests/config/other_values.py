"""Another allowed value for any configuration key."""

from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from serving.config.key import key_spec
from serving.config.serve import ServeConfig


def other_value(config: ServeConfig, key: str) -> Any:
    """Another value, as far from the current one as possible."""
    section, _, name = key.rpartition(".")
    owner: Any = config.cluster.nodes[0] if section == "cluster.nodes" else getattr(config, section)
    now, hint = getattr(owner, name), get_type_hints(type(owner))[name]
    spec = key_spec(next(one for one in fields(owner) if one.name == name))
    if get_origin(hint) is Literal:
        return next(choice for choice in reversed(get_args(hint)) if choice != now)
    if hint is bool:
        return not now
    if key == "cluster.port_range":
        return "30000-30100"
    if hint in (str, Path):
        return hint("other")
    if get_origin(hint) is tuple:
        return ("other",)
    if hint == float | tuple[float, ...]:
        hint = float
    low, high = spec.low or 0, spec.high if spec.high is not None else 3 * now + 10
    return hint(low if now - low > high - now else high)
