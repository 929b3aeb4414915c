"""One TOML file -> `ServeConfig`, with every error of the file reported as one line with the remedy.

    text ── tomllib ──► tables ── sections ──► values ── checks ──► ServeConfig ── with_overrides ──► ready to serve
                          ▲
                  --model, then --set

The sections and their keys are the dataclasses of this package; nothing is listed twice. The model folder is checked
only in `with_overrides`, because a simulation needs none.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from hardware.nesting import NestedTooDeeply, parse_json, parse_toml
from hardware.regular_file import read_regular_text
from serving.config.access_checks import check_namespaces
from serving.config.checks import check_consistency, check_model_folder, check_ports, check_tokenizer_folder
from serving.config.cluster import NodeConfig
from serving.config.gateway import GatewayConfig, with_keys
from serving.config.key import key_spec
from serving.config.model import hub_reference
from serving.config.serve import ServeConfig
from serving.config.value import convert, with_unit
from serving.errors import ConfigError
from serving.shipped import SHIPPED

Section = TypeVar("Section")
Root = TypeVar("Root")
Reader = Callable[[object, str], Any]
"""Reads one parsed table; the second argument is its origin, for messages."""

_OF_THE_MACHINE = ("device", "short_weights")
"""Keys of `[model]` that apply to any model; all others describe the named one."""
_FLAGS = {"host": "--host", "port": "--port", "api_keys": "--api-key", "drain_s": "--drain"}

_MOST_NAMED = 8
"""Files listed in the message about a missing one."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration, and which of its keys were set.

    Args:
        given: "section.key" of those in the file and in settings; keys of list sections under the list's name.
        by_setting: the ones from settings.
    """

    config: ServeConfig
    given: frozenset[str]
    by_setting: frozenset[str]


def load_config(path: str | Path, *, model: str | Path | None = None, settings: Sequence[str] = ()) -> ServeConfig:
    """Read a topology file like `read_config`, for callers that do not need the set of given keys."""
    return read_config(path, model=model, settings=settings).config


def read_config(
    path: str | Path, *, model: str | Path | None = None, settings: Sequence[str] = (), own_nodes: bool = True
) -> Loaded:
    """Read a topology file.

    Args:
        path: the TOML file; `[model] path` is relative to its folder.
        model: another checkpoint folder, relative to the current one, or a model of the Hugging Face Hub. It is served
            under its own name, in its own type and with its own tokenizer.
        settings: "section.key=value", each overriding the file; the value in TOML syntax, or bare text.
        own_nodes: as for `check_consistency`.
    Returns: the configuration, consistent in itself. `with_overrides` checks that the model folder exists; a model of
        the Hub is not fetched.
    Raises: ConfigError if the file cannot be read, is not TOML, names an unknown section or key, holds a value of the
        wrong type or out of range, or describes a topology that cannot run; likewise for a setting.
    Effects: reads the file.
    """
    file = Path(path)
    tables = _read_toml(file, "--config")
    if model is not None:
        _replace_model(tables, str(model))
    hints = get_type_hints(ServeConfig)
    by_setting = frozenset(_set(tables, setting, hints) for setting in settings)
    _place_model(tables, file.parent if model is None or "model.path" in by_setting else Path())
    config = _settle(_sections(file, tables, ServeConfig, {}), file)
    check_consistency(config, str(file), own_nodes=own_nodes)
    return Loaded(config, frozenset(_given(tables)), by_setting)


def load_sections(file: Path, kind: type[Root], flag: str, others: Mapping[str, Reader] | None = None) -> Root:
    """Read a TOML file into a dataclass in which each field is a section, or a list of sections.

    A file with the suffix `.json` is read as JSON with the same tables.

    Args:
        kind: its fields are dataclasses of `key` fields, or tuples of such; missing sections have the field's default.
        flag: the command-line flag that names such a file.
        others: readers for fields of another kind, by name.
    Returns: the value; only the type and range of each key are checked.
    Raises: ConfigError if the file cannot be read, is not TOML, names an unknown section or key, or holds a value of
        the wrong type or out of range.
    Effects: reads the file.
    """
    tables = _read_toml(file, flag)
    if not isinstance(tables, Mapping):
        raise ConfigError(f"{file} must have sections, not {type(tables).__name__}")
    return _sections(file, tables, kind, others or {})


def with_overrides(
    config: ServeConfig,
    *,
    host: str | None = None,
    port: int | None = None,
    api_keys: Sequence[str] | None = None,
    api_key_file: Path | None = None,
    environment_keys: str | None = None,
    drain_s: float | None = None,
) -> ServeConfig:
    """Apply the command line to a loaded file; the last step before serving, also without any flag.

    Args:
        host, port: address to listen on.
        api_keys, api_key_file: keys, and a file of them, that replace those of the file and of the environment.
        environment_keys: text of the environment variable for keys, if it is set; they replace those of the file.
        drain_s: how long requests may continue at shutdown.
    Returns: the configuration to serve.
    Raises: ConfigError if a value is out of range, the port is the dashboard's, an API key is also a tenant's, the key
        file is unusable, or the model folder holds no checkpoint.
    Effects: checks the model folder; reads the key file.
    """
    keys = None if api_keys is None else list(api_keys)
    given = {"host": host, "port": port, "api_keys": keys, "drain_s": drain_s}
    hints = get_type_hints(GatewayConfig)
    checked = {
        field.name: convert(_FLAGS[field.name], given[field.name], hints[field.name], key_spec(field))
        for field in fields(GatewayConfig)
        if given.get(field.name) is not None
    }
    check_model_folder(config.model)
    check_tokenizer_folder(config.model)
    gateway = replace(config.gateway, **checked)
    gateway = with_keys(gateway, checked.get("api_keys"), api_key_file, environment_keys)
    config = replace(config, gateway=gateway)
    check_ports(config)
    check_namespaces(config.namespaces, config.gateway)
    return config


def _read_toml(file: Path, flag: str) -> dict[str, Any]:
    as_json = file.suffix == ".json"
    try:
        text = read_regular_text(file)
        return parse_json(text) if as_json else parse_toml(text)
    except FileNotFoundError:
        there = _others(file, flag)
        raise ConfigError(f"no configuration file {file.absolute()}: name one with {flag}{there}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{file} is not valid {'JSON' if as_json else 'TOML'}: {error}") from error


def _others(file: Path, flag: str) -> str:
    """Suggestions for a missing file: its siblings, and for topologies the packaged ones."""
    beside = sorted(path.name for path in file.absolute().parent.glob("*.toml"))
    near = difflib.get_close_matches(file.name, beside, n=_MOST_NAMED, cutoff=0.5)
    named = [*near, *(name for name in beside if name not in near)][:_MOST_NAMED]
    words = f"; {file.absolute().parent} has {', '.join(named)}" if named else ""
    shipped = sorted(path.name for path in SHIPPED.glob("*.toml")) if flag == "--config" else []
    if shipped and file.absolute().parent != SHIPPED:
        words += f"; {SHIPPED} has {', '.join(shipped)}"
    return words


def _sections(file: Path, tables: Mapping[str, Any], kind: type[Root], others: Mapping[str, Reader]) -> Root:
    declared = {field.name: field for field in fields(kind)}  # type: ignore[arg-type] # a dataclass of sections
    _reject_unknown(f"{file}:", "section", tables, declared, lambda name: f"[{name}]")
    hints = get_type_hints(kind)
    read = {name: reader(tables[name], str(file)) for name, reader in others.items() if name in tables}
    sections = {
        name: _section(file, name, hints[name], field, tables.get(name))
        for name, field in declared.items()
        if name not in others
    }
    return kind(**sections, **read)


def _replace_model(tables: dict[str, Any], name: str) -> None:
    theirs = tables.get("model")
    kept = {key: theirs[key] for key in _OF_THE_MACHINE if key in theirs} if isinstance(theirs, dict) else {}
    tables["model"] = {**kept, "path": name}


def _place_model(tables: dict[str, Any], base: Path) -> None:
    """Make a model folder's path absolute, starting from the original text, since a path object drops a leading
    `./`."""
    model = tables.get("model")
    text = model.get("path") if isinstance(model, dict) else None
    if isinstance(text, str) and text and hub_reference(text, base) is None:
        tables["model"] = {**model, "path": str((base / Path(text).expanduser()).resolve())}  # type: ignore[dict-item]


def _given(tables: Mapping[str, Any]) -> Iterator[str]:
    """Every key of valid tables."""
    for section, table in tables.items():
        for one in table if isinstance(table, list) else [table]:
            for key, value in one.items():
                if (section, key) == ("cluster", "nodes"):
                    yield from (f"cluster.nodes.{name}" for node in value for name in node)
                else:
                    yield f"{section}.{key}"


def _set(tables: dict[str, Any], setting: str, hints: Mapping[str, Any]) -> str:
    """Put one "section.key=value" into the file's tables, checked separately, so that an error names the setting.

    Returns: "section.key".
    """
    where = f"--set {setting}:"
    name, equals, text = setting.partition("=")
    section, dot, key = (part.strip() for part in name.partition("."))
    if not (equals and dot and section and key):
        raise ConfigError(f"{where} must be SECTION.KEY=VALUE, for example gateway.replicas=2")
    _reject_unknown(where, "section", [section], hints, lambda name: f"[{name}]")
    kind = hints[section]
    if get_origin(kind) is tuple:
        raise ConfigError(f"{where} [[{section}]] is a list of sections, which only a file can set")
    try:
        value = parse_toml(f"value = {text}")["value"]
    except NestedTooDeeply as error:
        raise ConfigError(f"--set {section}.{key}: {error}") from None
    except ValueError:  # text whose quotes the shell removed
        value = text
    _read_keys(f"--set [{section}]", kind, {key: value})
    table = tables.setdefault(section, {})
    if isinstance(table, dict):  # otherwise an error is reported for the file
        table[key] = value
    return f"{section}.{key}"


def _section(file: Path, name: str, kind: type[Any], declared: Field[Any], table: object) -> Any:  # noqa: ANN401
    """One section of the root: the file's keys over the section's defaults; or a list of sections."""
    if get_origin(kind) is tuple:
        return () if table is None else _read_tables(f"{file}: [[{name}]]", f"[[{name}]]", get_args(kind)[0], table)
    default = None if declared.default_factory is MISSING else declared.default_factory()
    return _read_section(f"{file}: [{name}]", kind, {} if table is None else table, default)


def _read_section(where: str, kind: type[Section], table: object, default: Section | None = None) -> Section:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} must be a section of keys, got {table!r}")
    values = _read_keys(where, kind, table)
    if default is not None:
        return replace(default, **values)  # type: ignore[type-var] # every section is a dataclass
    for field in fields(kind):  # type: ignore[arg-type] # every section is a dataclass
        if field.name not in values and field.default is MISSING:
            raise ConfigError(f"{where} {field.name} is missing: {key_spec(field).doc}")
    return kind(**values)


def _read_keys(where: str, kind: type[Any], table: Mapping[str, object]) -> dict[str, Any]:
    declared = {field.name: field for field in fields(kind)}
    _reject_unknown(where, "key", table, declared, lambda name: f"`{name}`")
    hints = get_type_hints(kind)
    return {name: _read_value(f"{where} {name}", value, hints[name], declared[name]) for name, value in table.items()}


def _read_value(where: str, value: object, hint: Any, declared: Field[Any]) -> Any:  # noqa: ANN401 - any declared type
    if get_origin(hint) is tuple and get_args(hint)[0] is NodeConfig:
        nodes = _read_tables(where, "[[cluster.nodes]]", NodeConfig, value)
        return tuple(replace(node, name=node.name or f"node-{index}") for index, node in enumerate(nodes))
    if hint in (int, float):
        value = with_unit(where, declared.name, value)
    return convert(where, value, hint, key_spec(declared))


def _read_tables(where: str, title: str, kind: type[Section], value: object) -> tuple[Section, ...]:
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
    """Fill in what depends on the file's location: absolute folders, and a default for the model's name."""
    hub, words = config.model.hub, config.model.tokenizer
    tokenizer = str((file.parent / Path(words).expanduser()).resolve()) if words else ""
    own_name = hub.repository if hub else config.model.path.name
    model = replace(config.model, tokenizer=tokenizer, name=config.model.name or own_name)
    ssd = config.kvcache.ssd_path
    kvcache = replace(config.kvcache, ssd_path=str((file.parent / Path(ssd).expanduser()).resolve()) if ssd else "")
    log = config.engine.decision_log
    engine = replace(config.engine, decision_log=str((file.parent / Path(log).expanduser()).resolve()) if log else "")
    device, profile = (
        str((file.parent / Path(name).expanduser()).resolve()) if name.endswith(".toml") else name
        for name in (config.simulation.device, config.simulation.engine)
    )
    routing = config.simulation.routing
    trace = str((file.parent / Path(routing).expanduser()).resolve()) if routing not in ("", "skew") else routing
    simulation = replace(config.simulation, device=device, engine=profile, routing=trace)
    keys = config.gateway.api_key_file
    gateway = replace(
        config.gateway, api_key_file=str((file.parent / Path(keys).expanduser()).resolve()) if keys else ""
    )
    return replace(config, model=model, gateway=gateway, engine=engine, kvcache=kvcache, simulation=simulation)
