"""Deploys on an existing Ray cluster, reports what was found, and removes the deployment again.

Ray itself keeps running. After starting Ray, the local start uses the same code: `serving/launch/deploying.py`.
"""

import contextlib
import logging
import secrets
import socket
import time
import urllib.parse
from collections import Counter
from functools import partial

import ray
from ray import serve
from ray._private import services
from ray._raylet import GcsClient  # type: ignore[attr-defined]

from hardware.ray_resources import silence_npu_probe
from loadgen.exit_codes import ExitCode
from serving.cluster.gcs_store import ActorLookup, GcsStore
from serving.cluster.host_environment import AUTHENTICATION, TLS, TOKEN, TOKEN_FILE, storage_here, value_here
from serving.cluster.identity import KEEP_PERIOD_S, found_identity, read_secrets, read_session, write_secrets
from serving.cluster.named_actor import end_actors
from serving.cluster.serve_replicas import replicas_among
from serving.cluster.session import SystemSession, deployed_session
from serving.config.checks import replicas_at_start
from serving.config.packing import can_pack
from serving.config.serve import ServeConfig
from serving.errors import ConfigError, in_words
from serving.launch.app import APP_NAME
from serving.launch.banner import banner, computing_here
from serving.launch.deploying import StartError, base_url, deploy_and_wait, is_ready, planned
from serving.launch.deployment_lease import DeploymentLease
from serving.launch.hosts import Answers, Host, ask_hosts, living_hosts, on_nodes, publish_if_needed
from serving.launch.ray_parts import hide_command_line, leave_ray
from serving.launch.system_files import remove_system_files
from serving.terminal import own_command, print_text, say

logger = logging.getLogger(__name__)

THIS_HOST = "auto"
REACH_S = 5.0
ANSWER_S = 10.0
"""Response timeout; a head that accepts connections and exceeds it is frozen."""
DELETE_S = 900.0
"""Time for replicas to exit: running requests may finish first, up to `[gateway] request_timeout_s`."""
DELETE_LOOK_S = 0.2
STILL_S = 15.0
"""Interval of status lines during a long removal [s]."""
ANY_HOST = ("0.0.0.0", "::")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ExistingCluster:
    """Existing Ray cluster to which this process is connected; implements `Cluster`.

    Args:
        address: of Ray's head, `HOST:PORT`, or `auto`.
    Raises: StartError if no Ray runs at the address, or this machine is not part of it.
    """

    def __init__(self, address: str) -> None:
        silence_npu_probe()
        hide_command_line()
        _require_head(address)
        try:
            context = ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray raises many kinds of errors, with many lines
            raise StartError(_why_not(address, error)) from error
        self.address = address
        self._dashboard = str(context.dashboard_url or "")
        self.hosts = living_hosts()
        self.store = GcsStore()

    @property
    def session(self) -> SystemSession:
        """The deployed system's session. Raises: SilentError."""
        return deployed_session(read_session(self.store) or found_identity(self.store).session)

    @property
    def dashboard_url(self) -> str:
        """URL of Ray's dashboard; empty if Ray has none."""
        return f"http://{self._dashboard}" if self._dashboard else ""

    @property
    def dashboard_place(self) -> str:
        """The head, if only it reaches the dashboard's address; otherwise empty."""
        return str(dashboard_elsewhere(self) or "")

    @property
    def token_flag(self) -> str:
        """Flags with the token file of this user's environment."""
        if value_here(AUTHENTICATION) != "token":
            return " --token none"
        return f" --token-file {value_here(TOKEN_FILE) or '~/.ray/auth_token'}" if not value_here(TOKEN) else ""

    @property
    def logs(self) -> str:
        """Location of Ray's logs."""
        return "/tmp/ray/session_latest/logs on each host"

    def ready_gateways(self, config: ServeConfig) -> list[str]:
        """Base URLs of ready gateways; checked on every host, since a gateway may run on any and listen on loopback."""
        gateway = config.gateway
        answers = ask_hosts(gateway_here, gateway.host, gateway.port)
        here = ray.util.get_node_ip_address()
        found = [host.address for host, ready in sorted(answers.given.items()) if ready]
        found.sort(key=lambda address: address != here)
        if gateway.host in ANY_HOST:
            return [base_url(address, gateway.port) for address in found]
        return [base_url(gateway.host, gateway.port)] if found else []


def gateway_here(host: str, port: int) -> bool:
    """Whether a gateway on this host reports ready. Runs on that host."""
    return is_ready(base_url("127.0.0.1" if host in ANY_HOST else host, port))


def serve_on(config: ServeConfig, address: str) -> int:
    """Deploy or redeploy on an existing Ray, and return when the system serves. Returns: the exit code."""
    try:
        cluster = ExistingCluster(address)
        config = on_nodes(config, cluster.hosts)
        found_identity(cluster.store)  # a configured salt is written once this deployment holds the lease
        for line in findings(config, cluster):
            say(line)
        url = deploy_and_wait(config, cluster, say, partial(publish_if_needed, cluster.store, config, cluster.hosts))
        command, computing = own_command(), computing_here()
        print_text(
            f"{banner(config, cluster, url, computing)}\nThe system keeps running. Show it: {command} status"
            f" --url {url}\n"
            f"Remove it: {command} down --address {address}\n"
        )
    except StartError as error:
        raise ConfigError(str(error)) from error
    finally:
        leave_ray()
    return 0


def dry_run(config: ServeConfig, address: str) -> int:
    """Print the changes that `serve_on` would make. Returns: the exit code."""
    try:
        cluster = ExistingCluster(address)
        for line in planned(on_nodes(config, cluster.hosts)):
            print_text(f"{line}")
    except StartError as error:
        raise ConfigError(str(error)) from error
    finally:
        leave_ray()
    return 0


def findings(config: ServeConfig, cluster: ExistingCluster) -> list[str]:
    """Lines about the Ray that was found, and about its restrictions. Raises: Ray's errors."""
    hosts = cluster.hosts
    plural = "s" * (len(hosts) > 1)
    npus, memory = sum(host.npus for host in hosts), sum(host.ub_memory_mib for host in hosts)
    answers = ask_hosts(storage_here)
    storage = next((answer for host, answer in answers.given.items() if host.head), "unknown")
    auth = value_here(AUTHENTICATION) or "none"
    lines = [
        f"found Ray {ray.__version__} at {cluster.address}: {len(hosts)} host{plural}, {npus} NPUs,"
        f" {memory} MiB of UB memory; authentication {auth}; TLS {'on' if value_here(TLS) == '1' else 'off'};"
        f" control store in {storage}",
        *(f"  {host}: {host.npus} NPUs, {host.ub_memory_mib} MiB{', head' * host.head}" for host in hosts),
        *(f"{host} {why}" for host, why in answers.silent.items()),
    ]
    if config.autoscaler.nodes == "ray" and not can_pack(replicas_at_start(config), config.cluster.nodes):
        lines.append(
            "these hosts are too small for all of it: more are requested from Ray's autoscaler, see `ray status`"
        )
    if storage == "memory":
        lines.append("Ray's control store is in the head's memory: when the head ends, so does all; a Redis keeps it")
    if auth == "none":
        lines.append(
            "Ray requires no token: any client that reaches its ports can run code here; see `cloudmatrix node-env`"
        )
    if value_here(TLS) != "1" and len(hosts) > 1:
        lines.append("without TLS prompts and KV blocks can be read on the network between hosts; see RAY_USE_TLS")
    if config.gateway.host in _LOOPBACK and len(hosts) > 1:
        lines.append(
            f"the gateway listens on {config.gateway.host} of its own host only: --host 0.0.0.0 lets others reach it"
        )
    if head := dashboard_elsewhere(cluster):
        lines.append(
            f"the dashboard listens on {head} itself only: run `cloudmatrix scale` and `decisions` there, or start that"
            " with DASHBOARD_HOST=0.0.0.0, or ray start --dashboard-host=0.0.0.0"
        )
    if not cluster.dashboard_url:
        lines.append("Ray has no dashboard: no /pools, no `cloudmatrix scale`; start the head with --include-dashboard")
    return lines


def dashboard_elsewhere(cluster: ExistingCluster) -> Host | None:
    """The head, if its dashboard can be reached only from that host, and this is another one."""
    name = urllib.parse.urlsplit(cluster.dashboard_url).hostname
    here = ray.util.get_node_ip_address()
    return next((host for host in cluster.hosts if host.head and host.address != here and name in _LOOPBACK), None)


def take_down(address: str) -> int:
    """Remove the application, its named actors and its files on every host. Returns: the exit code."""
    try:
        cluster = ExistingCluster(address)
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        with DeploymentLease(cluster.store, "takes the system away", say):
            session = read_session(cluster.store)
            others = _delete_application()
            ended = end_actors()
            answers = ask_hosts(remove_system_files, session) if session else Answers({}, {})
            if not others:
                serve.shutdown()
            for key in cluster.store.keys():
                cluster.store.delete(key)
    except StartError as error:
        raise ConfigError(str(error)) from error
    finally:
        leave_ray()
    for host, left in sorted(answers.given.items()):
        say(f"{host}: {left} file{'s' * (left != 1)} removed")
    for host, why in answers.silent.items():
        say(f"{host}: {why}; delete /dev/shm/cloudmatrix-ub-{session}-* and /tmp/cloudmatrix.{session} there by hand")
    was = f"removed {APP_NAME} and {len(ended)} named actors" if session or ended else "no system was deployed"
    say(f"{was}; Ray at {address} keeps running")
    return ExitCode.FAILURE if answers.silent else ExitCode.OK


def _delete_application() -> list[str]:
    """Delete the application and wait until its replicas have exited; running requests may finish first.

    Returns: names of other applications.
    Raises: StartError if it still exists after `DELETE_S`.
    """
    applications = list(serve.status().applications)
    if APP_NAME in applications:
        serve.delete(APP_NAME, _blocking=False)
        begun = said = time.monotonic()
        while APP_NAME in serve.status().applications:
            now = time.monotonic()
            if now - begun > DELETE_S:
                raise StartError(
                    f"{APP_NAME} was not removed within {DELETE_S:.0f} s; see `serve status`, then repeat the command"
                )
            if now - said > STILL_S:
                said = now
                say(f"requests may end first; still there: {_still_there()}")
            time.sleep(DELETE_LOOK_S)
    return [name for name in applications if name != APP_NAME]


def _still_there() -> str:
    """The application's remaining replicas, such as `decode: 1; gateway: 1`."""
    found = [one.deployment_id for one in replicas_among(ray.util.list_named_actors(all_namespaces=True))]
    left = Counter(one.name for one in found if one.app_name == APP_NAME)
    return "; ".join(f"{name}: {count}" for name, count in sorted(left.items())) or APP_NAME


def _require_head(address: str) -> None:
    """Raises: StartError if no head responds, because Ray would retry for many minutes, and might then abort."""
    head = _head_of(address)
    host, _, port = head.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
        _ask_head(head)
    except (OSError, OverflowError) as error:
        reason = in_words(error)
        raise StartError(
            f"no Ray responds at {head} ({reason}): is it the port of its head's GCS? If the head is lost, the "
            "system keeps serving: restart the head at that address, then repeat the command"
        ) from error


def _head_of(address: str) -> str:
    """`HOST:PORT` of the head. Raises: StartError if it is unknown."""
    if address == THIS_HOST:
        try:
            return str(services.canonicalize_bootstrap_address_or_die(address))
        except ConnectionError as error:
            raise StartError("no Ray runs on this host: give --address HOST:PORT of its head") from error
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdecimal()) or "/" in host:
        raise StartError(f"{address} is not a Ray address: give HOST:PORT, such as 10.0.0.1:6379, or auto")
    return address


def _ask_head(head: str) -> None:
    """Raises: TimeoutError if it does not respond; other errors surface at the next connection."""
    try:
        ActorLookup(lambda: GcsClient(address=head)).wait(ANSWER_S)
    except TimeoutError:
        raise
    except Exception as error:  # Ray raises many kinds of errors
        logger.debug("%s", error)


def _why_not(address: str, error: Exception) -> str:
    text = str(error)
    reason = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    if "node_ip_address" in text or "No node" in text or "not find any running" in text or "raylet" in text.lower():
        return (
            f"this machine is no host of the Ray at {address}: run the command on one of its hosts, or `serve deploy`"
            f" deploy/serve.yaml ({reason})"
        )
    if "uthentication" in text or "token" in text.lower():
        return f"the Ray at {address} requires its token: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH ({reason})"
    if "ersion mismatch" in text:
        return f"the Ray at {address} has another version: {reason}; install the same here"
    with contextlib.suppress(IndexError):
        reason = reason.split(". ")[0]
    return f"no Ray responds at {address}: {reason}"


# Rotation of a running system's secret: the new one is written to Ray's control store, which its processes poll.

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
