"""Files of a report: the folder is created first, so that a failure costs no minutes of computing."""

from pathlib import Path

from serving.errors import ConfigError


def make_folder(path: Path) -> None:
    """Create a report's folder.

    Raises: ConfigError if it cannot be created.
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
