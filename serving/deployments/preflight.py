"""What can be wrong before anything was started. Imports no Ray, so that a mistake costs a moment and one line."""

import errno
import socket

from serving.config.serve import ServeConfig
from serving.errors import ConfigError, ModelError
from serving.model.config import ModelConfig


def preflight(config: ServeConfig) -> None:
    """Find mistakes while nothing runs yet.

    Raises: ConfigError (a port is taken), ModelError (the model folder cannot be served).
    """
    ModelConfig.from_folder(config.model.path)
    if not any(config.model.path.glob("*.safetensors")):
        raise ModelError(f"{config.model.path} has no *.safetensors: give the folder of a Hugging Face checkpoint")
    _require_free(config.gateway.host, config.gateway.port, "[gateway] port or --port")
    if config.cluster.dashboard_port:
        _require_free(
            config.cluster.dashboard_host, config.cluster.dashboard_port, "[cluster] dashboard_port (0 = any)"
        )


def _require_free(host: str, port: int, setting: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(
                    f"port {port} on {host} is in use: stop what listens there, or set {setting}"
                ) from error
            raise ConfigError(f"cannot listen on {host}:{port} ({error.strerror}): set {setting}") from error
