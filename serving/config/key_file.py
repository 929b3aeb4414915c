"""API keys from outside the configuration: a key file or an environment variable."""

import logging
import re
import stat
from dataclasses import replace
from pathlib import Path

from serving.config.gateway import GatewayConfig
from serving.errors import ConfigError
from serving.regular_file import read_regular

logger = logging.getLogger(__name__)

VARIABLE = "CLOUDMATRIX_API_KEYS"
_MOST_BYTES = 1 << 20
_FOR_OTHERS = stat.S_IRGRP | stat.S_IROTH


def _read_key_file(where: str, path: Path) -> tuple[str, ...]:
    """The keys in a file: one per line; empty lines and lines that start with `#` are ignored.

    Args:
        where: the flag or key that names the file, for messages, which never contain a key.
    Raises: ConfigError if it cannot be read, is not a regular file, is not text, or holds no key, which would leave the
        endpoint open.
    Effects: reads the file; logs a warning if users other than its owner may read it.
    """
    try:
        text = read_regular(path, most_bytes=_MOST_BYTES).decode()
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise ConfigError(f"{where}: there is no file {path}") from None
    except OSError as error:
        raise ConfigError(f"{where}: {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: {path} is not UTF-8 text: write one key per line") from None
    lines = [line.strip() for line in text.splitlines()]
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError(f"{where}: {path} contains no key: write one per line")
    if mode & _FOR_OTHERS:
        logger.warning("%s: other users than the owner can read the keys in %s: run chmod 600 on it", where, path)
    return keys


def _keys_of_text(text: str) -> tuple[str, ...]:
    """Keys separated by commas or white space. Raises: ConfigError if there is none."""
    keys = tuple(filter(None, re.split(r"[,\s]+", text)))
    if not keys:
        raise ConfigError(f"{VARIABLE} is set but contains no key: give it one, or unset it")
    return keys


def with_keys(
    gateway: GatewayConfig, flags: tuple[str, ...] | None, file_flag: Path | None, environment: str | None
) -> GatewayConfig:
    """The keys of `[gateway]` from any source: flags override the environment, which overrides the configuration.

    Args:
        flags, file_flag: from the command line; both may be given.
        environment: text of the environment variable; None = not set.
    Raises: ConfigError for an unusable file or text.
    Effects: reads the key file, if there is one.
    """
    if flags is not None or file_flag is not None:
        file = "" if file_flag is None else str(file_flag)
        gateway = replace(gateway, api_keys=flags or (), api_key_file=file)
    elif environment is not None:
        gateway = replace(gateway, api_keys=_keys_of_text(environment), api_key_file="")
    if not gateway.api_key_file:
        return gateway
    where = "[gateway] api_key_file" if file_flag is None else "--api-key-file"
    more = _read_key_file(where, Path(gateway.api_key_file))
    return replace(gateway, api_keys=(*gateway.api_keys, *more))
