"""Model folders that are not on every host: their small files are distributed through Ray's control store."""

import logging
import socket
from dataclasses import replace
from pathlib import Path

import msgspec

from serving.cluster.gcs_store import LARGEST_VALUE_BYTES, GcsStore
from serving.cluster.identity import read_session
from serving.cluster.session import deployed_session
from serving.config.model import ModelConfig
from serving.config.serve import ServeConfig
from serving.errors import ModelError
from serving.model.parcel import name_of, pack, unpack
from serving.model.weight_files import is_partial

logger = logging.getLogger(__name__)

PREFIX = "model/"
_LIST = f"{PREFIX}list"


class ParcelList(msgspec.Struct, frozen=True):
    """The distributed folders: for each path, the parcel's name and its number of parts."""

    folders: dict[str, tuple[str, int]]


def publish_model(store: GcsStore, model: ModelConfig) -> None:
    """Store the folders of a model, except for its weights, for hosts that do not have them.

    Raises: ModelError if they cannot be read, or are too large; SilentError.
    Effects: replaces those of an earlier deployment.
    """
    listed: dict[str, tuple[str, int]] = {}
    parts: dict[str, bytes] = {}
    for folder in {model.path, model.tokenizer_folder}:
        parcel = pack(folder)
        name = name_of(parcel)
        cut = [parcel[at : at + LARGEST_VALUE_BYTES] for at in range(0, len(parcel), LARGEST_VALUE_BYTES)]
        parts |= {_part(name, index): part for index, part in enumerate(cut)}
        listed[str(folder)] = (name, len(cut))
    for key, part in parts.items():
        store.put_if_absent(key, part)
    store.put(_LIST, msgspec.json.encode(ParcelList(listed)))
    for key in store.keys(PREFIX):
        if key != _LIST and key not in parts:
            store.delete(key)


def with_model_here(config: ServeConfig, store: GcsStore | None = None) -> ServeConfig:
    """The configuration with model folders that exist on this host, created from the stored parcels if missing.

    Raises: ModelError, with the host's name, if a folder is neither on this host nor stored; SilentError.
    Effects: may create folders in the system's own folder on this host.
    """
    model = config.model
    path, words = _here(model.path, store), _here(model.tokenizer_folder, store)
    if (path, words) == (model.path, model.tokenizer_folder):
        return config
    return replace(config, model=replace(model, path=path, tokenizer=str(words) if model.tokenizer else ""))


def _here(folder: Path, store: GcsStore | None) -> Path:
    if folder.is_dir() and not is_partial(folder):
        return folder
    store = store or GcsStore()
    kept, session = store.get(_LIST), read_session(store)
    found = msgspec.json.decode(kept, type=ParcelList).folders.get(str(folder)) if kept is not None else None
    if (found is None or session is None) and folder.is_dir():
        return folder
    if found is None or session is None:
        raise ModelError(
            f"host {socket.gethostname()} has no {folder}, and no host has published it: copy it there, or deploy from "
            "a host that has it"
        )
    name, count = found
    here = deployed_session(session).folder / f"model-{name}"
    if not here.is_dir():
        parts = [store.get(_part(name, index)) or b"" for index in range(count)]
        parcel = b"".join(parts)
        if name_of(parcel) != name:
            raise ModelError(
                f"host {socket.gethostname()}: {folder} arrived damaged from the control store; deploy again"
            )
        unpack(parcel, here)
        logger.warning("this host has no %s: everything but the weights is now in %s", folder, here)
    return here


def _part(name: str, index: int) -> str:
    return f"{PREFIX}{name}/{index:04d}"
