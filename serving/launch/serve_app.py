"""The application for Ray Serve's own YAML: `import_path: serving.launch.serve_app:app`.

`serve deploy`, KubeRay's `serveConfigV2` and Ray's dashboard deploy it; deploy/serve.yaml is an example. Session,
secret and salt are in Ray's control store, never in the YAML, so that a second deployment reuses them.
"""

import logging
from functools import partial
from pathlib import Path
from typing import Any

from ray.serve import Application

from hardware.regular_file import read_regular_text
from serving.cluster.gcs_store import GcsStore
from serving.cluster.identity import found_identity, write_secrets
from serving.cluster.session import deployed_session
from serving.config.load import read_config, with_overrides
from serving.errors import ConfigError
from serving.launch.deploying import application
from serving.launch.hosts import living_hosts, on_nodes, publish_if_needed
from serving.launch.preflight import check_before_fetch, preflight
from serving.model.hub_model import with_model_folder

logger = logging.getLogger(__name__)

REPOSITORY = Path(__file__).resolve().parents[2]
_KNOWN = ("config", "set", "secret_file")


def app(args: dict[str, Any]) -> Application:
    """Builder for Serve's YAML; runs on a host of the cluster that Ray chooses.

    Args:
        args: `config`, a topology file, relative to this repository; `set`, a list of "section.key=value";
            `secret_file`, a file with the system's secrets, one per line, the current one first, to be used instead of
            the cluster's own. The files must exist on every host.
    Raises: ConfigError, ModelError if this cannot be served; Serve shows the line as the application's message.
    Effects: starts detached actors; writes the system's identity to Ray's control store; downloads a model of the
        Hugging Face Hub to this host.
    """
    unknown = [name for name in args if name not in _KNOWN]
    if unknown:
        raise ConfigError(f"args: unknown {', '.join(unknown)}; known are {', '.join(_KNOWN)}")
    file = args.get("config")
    settings = args.get("set", [])
    if not isinstance(file, str) or not isinstance(settings, list):
        raise ConfigError('args: give config: FILE, and set as a list of "section.key=value"')
    loaded = read_config(REPOSITORY / file, settings=[str(setting) for setting in settings], own_nodes=False)
    hosts = living_hosts()
    checked = partial(check_before_fetch, own_ray=False)
    config = with_model_folder(loaded.config, logger.warning, check=checked)
    config = on_nodes(with_overrides(config), hosts)
    preflight(config, own_ray=False)
    store = GcsStore()
    if "secret_file" in args:
        write_secrets(store, _secrets(Path(str(args["secret_file"]))))
    session = deployed_session(found_identity(store).session)
    return application(config, session, _dashboard_url(), partial(publish_if_needed, store, config, hosts))


def _secrets(file: Path) -> tuple[str, ...]:
    try:
        lines = tuple(line.strip() for line in read_regular_text(file).splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"secret_file {file} cannot be read: {error}") from error
    secrets = tuple(line for line in lines if line)
    if not secrets or any(len(secret) < SHORTEST_SECRET for secret in secrets):
        raise ConfigError(f"secret_file {file}: give at least one line of at least {SHORTEST_SECRET} characters")
    return secrets


SHORTEST_SECRET = 32


def _dashboard_url() -> str:
    from ray._private.worker import global_worker  # no other way to query it in a task

    url = getattr(global_worker.node, "webui_url", "")
    return f"http://{url}" if url else ""
