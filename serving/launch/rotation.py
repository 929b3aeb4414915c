"""Rotation of a running system's secret: the new one is written to Ray's control store, which its processes poll."""

import secrets

from serving.cluster.gcs_store import GcsStore
from serving.cluster.identity import read_secrets, write_secrets
from serving.cluster.socket_keeper import KEEP_PERIOD_S
from serving.errors import ConfigError
from serving.launch.banner import say
from serving.launch.deploying import StartError
from serving.launch.deployment_lease import DeploymentLease
from serving.launch.existing import ExistingCluster
from serving.launch.ray_parts import leave_ray

_TAKEN_S = 2 * KEEP_PERIOD_S


def rotate_secret(address: str, *, forget_old: bool = False) -> int:
    """Rotate the secret of the system at an address, or drop the previous one. Returns: the exit code.

    Raises: ConfigError if there is no such Ray, or no system on it; SilentError if its control store does not respond.
    """
    try:
        count = rotated(ExistingCluster(address).store, forget_old=forget_old)
    except StartError as error:
        raise ConfigError(str(error)) from error
    finally:
        leave_ray()
    if count == 1:
        say("only the current secret is accepted now")
    else:
        say(f"every process takes the new secret within {_TAKEN_S:.0f} s, and still accepts the one before")
        say("then forget that one: the same command with --forget-old")
    return 0


def rotated(store: GcsStore, *, forget_old: bool = False) -> int:
    """Write the new list: a new and the present secret, or the present one alone. Returns: number of accepted secrets.

    Raises: ConfigError if no system was deployed; SilentError.
    """
    with DeploymentLease(store, "rotates the secret", say):  # two concurrent rotations would drop one new secret
        kept = read_secrets(store)
        if not kept:
            raise ConfigError("no system runs on this Ray, so there is no secret to rotate: deploy one first")
        fresh = kept[:1] if forget_old else (secrets.token_hex(32), kept[0])
        write_secrets(store, fresh)
    return len(fresh)
