"""Models of this user on this machine, by the names that command lines use: bundled, imported, fetched from the Hub."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from serving.cluster.host_environment import value_here
from serving.config.model import hub_reference
from serving.errors import ConfigError
from serving.shipped import SHIPPED
from serving.tools.importing.smollm2 import NAME, alone, import_smollm2, smollm2_folder

Origin = Literal["bundled", "imported", "hub"]
_OF_SMOLLM2 = ("model.tools=hermes",)
"""Its chat template does not reveal a tool-call format; it handles this one well."""


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """A model of a command line.

    Args:
        path: a folder, or `org/name` of a Hub model that is not fetched yet.
        settings: "section.key=value" that this model needs.
    """

    path: str
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelHere:
    """A model on this machine.

    Args:
        name: as passed to `cloudmatrix serve`.
        size: of its files [bytes].
    """

    name: str
    origin: Origin
    folder: Path
    size: int


def choose_model(text: str, tell: Callable[[str], None]) -> ChosenModel:
    """The model that a command line names: a folder, a GGUF file, a name that `models_here` lists, or `org/name`.

    Args:
        tell: prints a progress line before a slow step.
    Returns: the model. A Hub model is not fetched yet. A path that does not exist is returned unchanged; reading it
        raises the error.
    Raises: ConfigError if no model has this name; ModelError if the import fails.
    Effects: a GGUF file or `smollm2` that is not in the user's cache is imported into it.
    """
    path = Path(text).expanduser()
    if path.is_dir():
        return ChosenModel(text, _OF_SMOLLM2 if path.resolve() == smollm2_folder().resolve() else ())
    if text.endswith(".gguf"):
        return ChosenModel(str(_imported(path, tell)))
    if text in (NAME, smollm2_folder().name):
        return ChosenModel(str(import_smollm2()), _OF_SMOLLM2)
    for folder, _ in _own_folders():
        if folder.name == text:
            return ChosenModel(str(folder))
    if hub_reference(text, Path()) is None and os.sep not in text:
        names = ", ".join([NAME, *(folder.name for folder, _ in _own_folders() if folder != smollm2_folder())])
        raise ConfigError(f"there is no model {text}: give a checkpoint folder, a GGUF file, org/name, or {names}")
    return ChosenModel(text)


def models_here() -> list[ModelHere]:
    """All models of this user on this machine, by name within each origin. Effects: reads folders."""
    found = [ModelHere(folder.name, origin, folder, _bytes_in(folder)) for folder, origin in _own_folders()]
    return [*found, *_of_hub()]


def remove_model(name: str, served: Sequence[Path]) -> ModelHere:
    """Delete a model from the user's cache, or from that of the Hub.

    Args:
        served: folders of models that running systems of this user serve.
    Returns: what was deleted.
    Raises: ConfigError if there is none, it is bundled or served, or its folder cannot be deleted.
    """
    wanted = smollm2_folder().name if name == NAME else name
    model = next((one for one in models_here() if one.name == wanted), None)
    if model is None:
        raise ConfigError(f"there is no model '{name}' here: `cloudmatrix models` lists them")
    if model.origin == "bundled":
        raise ConfigError(f"{name} belongs to the package: it is not removed")
    if any(folder.is_relative_to(_whole(model)) for folder in served):
        raise ConfigError(f"{name} is served now, and replicas that restart read it: `cloudmatrix stop` first")
    try:
        shutil.rmtree(_whole(model))
    except OSError as error:
        raise ConfigError(f"{model.folder} cannot be removed ({error.strerror})") from error
    return model


def _whole(model: ModelHere) -> Path:
    """The folder with all of a model's files; in the Hub's cache a snapshot holds links into a folder beside it."""
    return model.folder.parent.parent if model.origin == "hub" else model.folder


def _own_folders() -> Iterator[tuple[Path, Origin]]:
    places: tuple[tuple[Path, Origin], ...] = ((SHIPPED / "models", "bundled"), (smollm2_folder().parent, "imported"))
    for parent, origin in places:
        for config in sorted(parent.glob("[!.]*/config.json")):
            if any(config.parent.glob("*.safetensors")):  # otherwise only the shape of a model, for simulations
                yield config.parent, origin


def _of_hub() -> Iterator[ModelHere]:
    """Models in Hugging Face's cache whose configuration is there; its library takes half a second to import."""
    caches = smollm2_folder().parents[2]
    cache = Path(value_here("HF_HUB_CACHE") or Path(value_here("HF_HOME") or caches / "huggingface") / "hub")
    for repository in sorted(cache.glob("models--*")):
        snapshots = sorted(repository.glob("snapshots/*/config.json"), key=lambda path: path.lstat().st_mtime)
        if snapshots:
            name = repository.name.removeprefix("models--").replace("--", "/", 1)
            yield ModelHere(name, "hub", snapshots[-1].parent, _bytes_in(repository / "blobs"))


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _imported(file: Path, tell: Callable[[str], None]) -> Path:
    """The checkpoint folder of a GGUF file in the user's cache, imported if that was not done before.

    Files are told apart by path, size and time of change: a digest of the content would take seconds at every start.
    """
    from serving.tools.importing.import_run import import_on_console

    try:
        facts = file.stat()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}): name a GGUF file that exists") from error
    identity = json.dumps([str(file.resolve()), facts.st_size, facts.st_mtime_ns])
    folder = smollm2_folder().with_name(f"{file.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}")
    with alone(folder):
        if not (folder / "config.json").is_file():
            tell(f"importing {file} into {folder}")
            import_on_console(file, folder, "bfloat16", quiet=False)
    return folder
