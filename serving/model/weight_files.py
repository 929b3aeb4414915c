"""Tensor files of a checkpoint folder. Imports no torch, because downloads use it."""

from pathlib import Path

from hardware.nesting import parse_json
from serving.errors import ModelError
from serving.regular_file import MOST_JSON_BYTES, read_regular

INDEX = "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """Files of tensors: those of the index, else all safetensors files.

    Raises: ModelError if there are none, the index cannot be read, or a file that it lists is missing.
    Effects: reads the index.
    """
    names = indexed_files(folder)
    if names is None:
        found = sorted(folder.glob("*.safetensors"))
        if not found:
            raise ModelError(f"{folder} has no *.safetensors: give the folder of a Hugging Face checkpoint")
        return found
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        rest = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ModelError(f"{folder} lacks {', '.join(missing[:3])}{rest} of its index: fetch it again")
    return [folder / name for name in names]


def indexed_files(folder: Path) -> list[str] | None:
    """Names of the tensor files that an index lists; None without an index.

    Raises: ModelError if the index cannot be read, or names a file outside the folder.
    Effects: reads the index.
    """
    index = folder / INDEX
    if not index.is_file():
        return None
    try:
        weight_map = parse_json(read_regular(index, most_bytes=MOST_JSON_BYTES, within=folder))["weight_map"]
        return sorted(set(map(_plain_name, weight_map.values())))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} cannot be read ({error!r}): fetch it again") from error


def is_partial(folder: Path) -> bool:
    """Whether a folder is a snapshot in Hugging Face's cache that lacks weights because its download is incomplete.

    Effects: reads the folder's entries.
    """
    if folder.parent.name != "snapshots":
        return False
    try:
        return not weight_files(folder)
    except ModelError:
        return True


def _plain_name(name: object) -> str:
    """A file name from an index. Raises: ValueError for a path, which could lead outside the folder."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{str(name)[:80]!r} is not a name of a file in the folder")
    return name
