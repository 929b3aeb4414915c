"""Reading a checkpoint folder's configuration: `config.json`, and the end tokens of `generation_config.json`."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hardware.nesting import parse_json
from serving.errors import ModelError
from serving.model.architecture import Architecture
from serving.model.config_keys import ConfigKeys
from serving.model.families.registry import family_of
from serving.regular_file import MOST_JSON_BYTES, read_regular


def read_architecture(path: str | Path) -> Architecture:
    """The architecture of a checkpoint folder's model.

    Args:
        path: folder with `config.json` and, optionally, `generation_config.json`.
    Raises: ModelError if the folder or file is missing or unreadable, the architecture is not supported, or an unknown
        key may change results.
    Effects: reads files.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ModelError(f"model folder {folder} does not exist: give a folder with config.json and *.safetensors")
    raw = _read_json(folder / "config.json", required=True)
    generation = _read_json(folder / "generation_config.json", required=False)
    try:
        return architecture_of(raw, generation)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{folder / 'config.json'}: missing or malformed key {error}; re-export it") from error
    except ModelError as error:
        raise ModelError(f"{folder / 'config.json'}: {error}") from error


def architecture_of(raw: Mapping[str, object], generation: Mapping[str, object]) -> Architecture:
    """The same from the files' contents.

    Raises: KeyError, TypeError or ValueError for a missing or malformed key; ModelError for an unsupported model.
    """
    keys = ConfigKeys(raw)
    architecture = family_of(str(raw.get("model_type", "unknown")))(keys)
    keys.refuse_unread()
    return replace(architecture, eos_token_ids=_eos_ids(raw, generation))


def _read_json(path: Path, *, required: bool) -> Mapping[str, object]:
    if not path.is_file():
        if required:
            raise ModelError(f"{path} is missing: give the folder of a Hugging Face checkpoint")
        return {}
    try:
        value = parse_json(read_regular(path, most_bytes=MOST_JSON_BYTES, within=path.parent))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON ({error}): fetch it again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object: fetch it again")
    return value


def _eos_ids(raw: Mapping[str, object], generation: Mapping[str, object]) -> tuple[int, ...]:
    value, place = raw.get("eos_token_id"), ""
    if "eos_token_id" in generation:
        value, place = generation["eos_token_id"], " of generation_config.json"
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for one in ids:
        if not isinstance(one, int) or not -(2**31) <= one < 2**31:  # some files use -1 for none
            raise TypeError(f"eos_token_id = {str(one)[:40]}{place}")
    return tuple(ids)
