"""Files of a report: the folder is made before minutes are spent on what could not be written."""

from pathlib import Path

from serving.errors import ConfigError


def make_folder(path: Path) -> None:
    """Make a report's folder.

    Raises: ConfigError if there can be none.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write into {path}: {error.strerror or error}; name another folder") from None


def write_file(path: Path, content: bytes) -> None:
    """Write a report's file.

    Raises: ConfigError if the file cannot be written.
    """
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None
