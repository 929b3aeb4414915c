"""Name of a checkpoint's content, which identifies its images and KV blocks. Imports no torch."""

from hashlib import blake2b
from pathlib import Path

from serving.errors import ModelError
from serving.model.parcel import weights_digest
from serving.regular_file import MOST_JSON_BYTES, read_regular


def model_version(folder: str | Path) -> str:
    """Short digest of a checkpoint's content: config.json and the weights themselves, see `identity`.

    Copies of a folder on other hosts have the same version for any file times; different weights have different
    versions, even with equal names, sizes and times.

    Raises: ModelError if the folder cannot be read.
    Effects: reads some pages of each tensor, once per process.
    """
    digest = blake2b(digest_size=8)
    try:
        digest.update(read_regular(Path(folder) / "config.json", most_bytes=MOST_JSON_BYTES))
        digest.update(weights_digest(Path(folder)).encode())
    except OSError as error:
        raise ModelError(f"model folder {folder} cannot be read ({error}): fetch it again") from error
    return digest.hexdigest()
