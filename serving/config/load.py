"""One TOML file -> `ServeConfig`, with every mistake of the file reported as one line that says what to do.

    text ── tomllib ──► tables ── sections ──► values ── checks ──► ServeConfig ── with_overrides ──► ready to serve

The sections and their keys are the dataclasses of this package; nothing is listed twice. The model folder is looked at
only in `with_overrides`, because `--model` may name another one than the file.
"""

import difflib
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from serving.config.checks import check_consistency, check_model_folder, check_ports, check_tokenizer_folder
from serving.config.cluster import NodeConfig
from serving.config.gateway import GatewayConfig
from serving.config.key import key_spec
from serving.config.namespaces import check_namespaces
from serving.config.serve import ServeConfig
from serving.config.value import convert
from serving.errors import ConfigError

Section = TypeVar("Section")
Root = TypeVar("Root")

_FLAGS = {"host": "--host", "port": "--port", "api_keys": "--api-key"}


def load_config(path: str | Path) -> ServeConfig:
    """Reads a topology file.

    Args:
        path: the TOML file; `[model] path` is relative to its folder.
    Returns: the configuration, consistent in itself. Whether the model folder exists is left to `with_overrides`.
    Raises: ConfigError if the file cannot be read, is not TOML, names an unknown section or key, holds a value of the
        wrong type or out of range, or describes a topology that cannot run.
    Effects: reads the file.
    """
    file = Path(path)
    config = _settle(load_sections(file, ServeConfig), file)
    check_consistency(config, str(file))
    return config


def load_sections(file: Path, kind: type[Root], flag: str = "--config") -> Root:
    """Reads a TOML file into a dataclass whose every field is a section, or a list of sections.

    Args:
        kind: its fields are dataclasses of `key` fields, or tuples of such; missing sections have the field's default.
        flag: of the command line, that names such a file.
    Returns: the value; each key has its type and is in its range, nothing else is checked.
    Raises: ConfigError if the file cannot be read, is not TOML, names an unknown section or key, or holds a value of
        the wrong type or out of range.
    Effects: reads the file.
    """
    tables = _read_toml(file, flag)
    sections = {field.name: field for field in fields(kind)}  # type: ignore[arg-type] # a dataclass of sections
    _reject_unknown(f"{file}:", "section", tables, sections, lambda name: f"[{name}]")
    hints = get_type_hints(kind)
    values = {name: _section(file, name, hints[name], field, tables.get(name)) for name, field in sections.items()}
    return kind(**values)


def with_overrides(
    config: ServeConfig,
    *,
    model: str | Path | None = None,
    host: str | None = None,
    port: int | None = None,
    api_keys: Sequence[str] | None = None,
) -> ServeConfig:
    """Applies the command line to a loaded file; the last step before serving, also when no flag was given.

    Args:
        model: another checkpoint folder, relative to the current one; it is served under its folder's name.
        host, port: where to listen.
        api_keys: keys that replace those of the file.
    Returns: the configuration to serve.
    Raises: ConfigError if a value is out of range, the port is the dashboard's, an API key is also a tenant's, or the
        model folder holds no checkpoint.
    Effects: looks at the model folder.
    """
    if model is not None:
        folder = Path(model).expanduser().resolve()
        config = replace(config, model=replace(config.model, path=folder, name=folder.name))
    given = {"host": host, "port": port, "api_keys": None if api_keys is None else list(api_keys)}
    hints = get_type_hints(GatewayConfig)
    checked = {
        field.name: convert(_FLAGS[field.name], given[field.name], hints[field.name], key_spec(field))
        for field in fields(GatewayConfig)
        if given.get(field.name) is not None
    }
    check_model_folder(config.model)
    check_tokenizer_folder(config.model)
    config = replace(config, gateway=replace(config.gateway, **checked))
    check_ports(config)
    check_namespaces(config.namespaces, config.gateway)
    return config


def _read_toml(file: Path, flag: str) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no configuration file {file}: name one with {flag}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error


def _section(file: Path, name: str, kind: type[Any], declared: Field[Any], table: object) -> Any:  # noqa: ANN401
    """One section of the root: the file's keys over the section's own defaults; or a list of sections."""
    if get_origin(kind) is tuple:
        return () if table is None else _read_tables(f"{file}: [[{name}]]", f"[[{name}]]", get_args(kind)[0], table)
    default = None if declared.default_factory is MISSING else declared.default_factory()
    return _read_section(f"{file}: [{name}]", kind, {} if table is None else table, default)


def _read_section(where: str, kind: type[Section], table: object, default: Section | None = None) -> Section:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} must be a section of keys, got {table!r}")
    declared = {field.name: field for field in fields(kind)}  # type: ignore[arg-type] # every section is a dataclass
    _reject_unknown(where, "key", table, declared, lambda name: f"`{name}`")
    hints = get_type_hints(kind)
    values = {name: _read_value(f"{where} {name}", value, hints[name], declared[name]) for name, value in table.items()}
    if default is not None:
        return replace(default, **values)  # type: ignore[type-var] # every section is a dataclass
    for name, field in declared.items():
        if name not in values and field.default is MISSING:
            raise ConfigError(f"{where} {name} is missing: {key_spec(field).doc}")
    return kind(**values)


def _read_value(where: str, value: object, hint: Any, declared: Field[Any]) -> Any:  # noqa: ANN401 - any declared type
    if get_origin(hint) is tuple and get_args(hint)[0] is NodeConfig:
        nodes = _read_tables(where, "[[cluster.nodes]]", NodeConfig, value)
        return tuple(replace(node, name=node.name or f"node-{index}") for index, node in enumerate(nodes))
    return convert(where, value, hint, key_spec(declared))


def _read_tables(where: str, title: str, kind: type[Section], value: object) -> tuple[Section, ...]:
    """A list of sections, as TOML writes it with double brackets."""
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{where} must be one or more {title} sections")
    return tuple(_read_section(f"{where}[{index}]", kind, table) for index, table in enumerate(value))


def _reject_unknown(
    where: str, what: str, given: Iterable[str], known: Iterable[str], show: Callable[[str], str]
) -> None:
    known = list(known)
    for name in given:
        if name in known:
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {show(near[0])}?" if near else f"known are {', '.join(map(show, known))}"
        raise ConfigError(f"{where} unknown {what} {show(name)}; {hint}")


def _settle(config: ServeConfig, file: Path) -> ServeConfig:
    """Fills in what follows from the file's place: absolute folders, and the model's name where none is given."""
    folder = (file.parent / config.model.path.expanduser()).resolve()
    words = config.model.tokenizer
    tokenizer = str((file.parent / Path(words).expanduser()).resolve()) if words else ""
    model = replace(config.model, path=folder, tokenizer=tokenizer, name=config.model.name or folder.name)
    ssd = config.kvcache.ssd_path
    kvcache = replace(config.kvcache, ssd_path=str((file.parent / Path(ssd).expanduser()).resolve()) if ssd else "")
    log = config.engine.decision_log
    engine = replace(config.engine, decision_log=str((file.parent / Path(log).expanduser()).resolve()) if log else "")
    device = config.simulation.device
    if device.endswith(".toml"):
        device = str((file.parent / Path(device).expanduser()).resolve())
    simulation = replace(config.simulation, device=device)
    return replace(config, model=model, engine=engine, kvcache=kvcache, simulation=simulation)
