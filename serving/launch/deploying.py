"""Deploys a configuration's application on a running Ray cluster and waits until it serves."""

import contextlib
import logging
import re
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ray import serve
from ray.serve import Application
from ray.serve._private import client as serve_client

from serving.client.http_client import fetch
from serving.cluster.disk_watch import full_disk
from serving.cluster.gcs_store import GcsStore
from serving.cluster.identity import found_identity
from serving.cluster.session import SystemSession
from serving.config.serve import ServeConfig
from serving.errors import ServingError
from serving.gateway.live.sealing import salt_of, sealed
from serving.kvpool.live.pool_control import control_settings, start_pool_control
from serving.launch.app import APP_NAME, build
from serving.launch.deployment_lease import LEASE_S, DeploymentLease
from serving.launch.patience import StartWait, load_and_cores, load_here, slowness
from serving.launch.phases import DeployPhases, repeated
from serving.launch.rollout import Rollout, configuration_digest
from serving.scaling.live.scaling_board import note_deployment, start_board
from serving.values.system_tally import DeploymentNotice

logger = logging.getLogger(__name__)

READY_DEADLINE_S = 120.0
BOARD_S = 20.0
"""Deadline for a board that is still starting, on a busy machine."""
TELL_PERIOD_S = 30.0
"""Interval at which a slow start reports what it waits for [s]."""
POLL_S = 0.1
"""Interval at which `serve.run` looks whether the application runs; Ray's own is 1 s, which a start would wait for."""
_NOT_PLACED = re.compile(
    r"have taken more than .* to be scheduled.*each replica: (?P<takes>\{.*?\}),"
    r" total resources available: (?P<there>\{.*?\})"
)
_RAISED = re.compile(r"(hardware|serving)\.errors\.\w+: ")


class StartError(ServingError):
    """The system failed to start; the message contains the reason."""


class Cluster(Protocol):
    """A running Ray to which this process is connected, with what a deployment needs."""

    @property
    def session(self) -> SystemSession:
        """Name and folder of the system; the token is empty if the dashboard's token is not this start's own."""

    @property
    def dashboard_url(self) -> str:
        """URL of Ray's dashboard."""

    @property
    def dashboard_place(self) -> str:
        """The only host that reaches the dashboard's address, if it is not this one; otherwise empty."""

    @property
    def token_flag(self) -> str:
        """Flags with the token for a command that uses the dashboard's address."""

    @property
    def logs(self) -> str:
        """Location of Ray's logs, for messages."""

    def ready_gateways(self, config: ServeConfig) -> list[str]:
        """Base URLs of gateways that report ready."""


def running_deployments() -> list[str]:
    """Deployments with replicas, all of which run. Raises: Ray's errors."""
    application = serve.status().applications.get(APP_NAME)
    there = application.deployments.items() if application else ()
    return [name for name, deployment in there if set(replica_counts(deployment.replica_states)) == {"running"}]


def deploy_and_wait(
    config: ServeConfig,
    cluster: Cluster,
    say: Callable[[str], None],
    prepare: Callable[[], object] = lambda: None,
    phases: DeployPhases | None = None,
) -> str:
    """Deploy, and wait until a gateway can serve.

    Args:
        say, prepare: see `deploy`.
        phases: in which a first deployment is reported; otherwise one line says what is deployed.
    Returns: base URL of a gateway.
    Raises: StartError with the first cause that a replica reported; SilentError if the control store does not respond.
    """
    following = phases.followed(running_deployments) if phases else nullcontext()
    missing = partial(report_missing, say, cluster.session.folder)
    with repeated(missing, TELL_PERIOD_S, "missing-replicas"), following:
        deploy(config, cluster, say, prepare, tells=phases is None)
    return wait_ready(config, cluster, READY_DEADLINE_S * slowness(*load_and_cores()), say)


def report_missing(say: Callable[[str], None], folder: Path) -> None:
    """Report which replicas have not started: other applications on this Ray may occupy the resources, or the disk of
    the session's folder is full.
    """
    for line in missing_replicas():
        say(line)
    say(full_disk(folder) or f"this machine has {load_here()}")


def missing_replicas() -> list[str]:
    """One line per deployment whose replicas do not run yet, with Serve's status message.

    Raises: Ray's errors.
    """
    application = serve.status().applications.get(APP_NAME)
    lines = []
    for name, deployment in application.deployments.items() if application else ():
        counts = replica_counts(deployment.replica_states)
        if set(counts) - {"running"} or not counts:
            why = without_alarm(deployment.message.strip().partition("\n")[0])
            there = in_words(counts) or "no replica yet"
            lines.append(f"still waiting for {name}: {there}{f'; {why}' if why else ''}")
    return lines


def without_alarm(message: str) -> str:
    """Serve's message about a deployment, without its warning that replicas take longer than usual: on a busy machine
    they do, and the cluster need not grow for it. Required and available resources are kept.
    """
    if (facts := _NOT_PLACED.search(message)) is not None:
        return f"each takes {facts['takes']}, and there is {facts['there']}"
    return "" if "have taken more than" in message else message


def replica_counts(states: Mapping[Any, int]) -> dict[str, int]:
    """Replicas by state, from Serve's status, in lower case and sorted."""
    return dict(sorted((str(getattr(state, "value", state)).lower(), count) for state, count in states.items()))


def in_words(counts: Mapping[str, int]) -> str:
    """Replicas by state as text: `1 running, 2 starting`."""
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def deploy(
    config: ServeConfig,
    cluster: Cluster,
    say: Callable[[str], None],
    prepare: Callable[[], object] = lambda: None,
    *,
    tells: bool = True,
) -> None:
    """Deploy the application on a running cluster and wait until its replicas run; a running application is upgraded.

    Args:
        say: receives progress lines.
        prepare: called once no other deployment is in progress, before this one starts.
        tells: whether a first deployment is a line, too.
    Raises: StartError with the first cause that a replica reported; SilentError if the control store does not respond.
    """
    with_proxy = config.gateway.server == "serve"
    serve_client.CLIENT_POLLING_INTERVAL_S = POLL_S  # type: ignore[attr-defined]
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    serve.start(
        proxy_location="HeadOnly" if with_proxy else "Disabled",
        http_options={"host": config.gateway.host, "port": config.gateway.port},
        logging_config={"enable_access_log": False},
    )
    try:
        with _turn(config, say) as turn, turn.until_over():
            rollout = Rollout(sealed(config), APP_NAME, GcsStore())
            plan = rollout.plan()
            first = [f"deploying {', '.join(rollout.names)} ..."] * tells
            for line in first if plan is None else plan.lines():
                say(line)
            prepare()
            parts = _parts(config, cluster.session, cluster.dashboard_url)
            for orders in rollout.stages(partial(turn.begin, runs=rollout.runs)):
                app = build(sealed(config), **parts, orders=orders)
                serve.run(app, name=APP_NAME, route_prefix="/", external_scaler_enabled=True)
    except RuntimeError as error:
        cause, name = _cause(str(error))
        raise StartError(f"{cause} ({_log_of(Path(cluster.logs) / 'serve', name)})") from error
    finally:
        logging.getLogger("ray.serve").setLevel(logging.WARNING)


class DeploymentTurn:
    """This process's turn to deploy: the lease, and its reports to the scaling board.

    Args:
        note: reports to the board, see `note_deployment`.
    """

    def __init__(
        self,
        lease: DeploymentLease,
        configuration: str,
        note: Callable[[DeploymentNotice, float], Mapping[str, int] | None] = note_deployment,
    ) -> None:
        self._lease, self._configuration, self._note = lease, configuration, note
        self._stage = ""

    def begin(self, stage: str, wanted: Mapping[str, int], *, runs: bool) -> Mapping[str, int]:
        """Start a stage, see `rollout.Begin`.

        Args:
            runs: whether the application was already deployed, so that the board may hold targets.
        Returns: no targets if the board does not respond; Serve's targets then apply.
        Raises: StartError if another deployment has taken over; SilentError.
        """
        if not self._lease.advance(stage):
            raise StartError(
                f"another deployment took over before {stage}: this one did not renew its lease for "
                f"{LEASE_S:.0f} s, or the system was removed; deploy again if you want that"
            )
        self._stage = stage
        return self._tell(stage, wanted, BOARD_S if runs else 0.0)

    @contextlib.contextmanager
    def until_over(self) -> Iterator[None]:
        """Context in which the stages run; on exit the outcome is reported to the board."""
        end, deadline_s = "done", BOARD_S
        try:
            yield
        except BaseException as error:
            end = f"failed at {self._stage} ({type(error).__name__})"
            deadline_s = BOARD_S if isinstance(error, Exception) else 0.0  # no wait after an interrupt
            raise
        finally:
            if self._stage:
                self._tell(end, {}, deadline_s, over=True)

    def _tell(
        self, stage: str, wanted: Mapping[str, int], deadline_s: float, *, over: bool = False
    ) -> Mapping[str, int]:
        notice = DeploymentNotice(self._lease.author, self._configuration, stage, dict(wanted), over)
        return self._note(notice, deadline_s) or {}


@contextlib.contextmanager
def _turn(config: ServeConfig, say: Callable[[str], None]) -> Iterator[DeploymentTurn]:
    """Wait for other deployments to end, then hold the lease for this configuration. Raises: SilentError."""
    configuration = configuration_digest(sealed(config))
    with DeploymentLease(GcsStore(), f"deploys configuration {configuration}", say) as lease:
        yield DeploymentTurn(lease, configuration)


def planned(config: ServeConfig) -> list[str]:
    """Lines for people about what deploying this configuration would do. Raises: SilentError."""
    rollout = Rollout(sealed(config), APP_NAME, GcsStore())
    plan = rollout.plan()
    if plan is None:
        return [f"nothing is deployed here: {', '.join(rollout.names)} would start"]
    lines = plan.lines()
    if rollout.at_once:
        lines.append("all at once: what is new does not go on with what runs")
    return lines


def application(
    config: ServeConfig, session: SystemSession, dashboard_url: str, prepare: Callable[[], object] = lambda: None
) -> Application:
    """The application, ready to run, after its detached actors were started with this configuration.

    Args:
        config: not sealed.
        session: of the system; a name in the control store overrides its name.
        prepare: see `deploy`.
    Raises: SilentError if the control store does not respond.
    Effects: writes the system's identity to the control store; recreates detached actors of an earlier deployment.
    """
    with _turn(config, logger.warning) as turn:  # Serve deploys it later: the board expects its targets until then
        rollout = Rollout(sealed(config), APP_NAME, GcsStore())
        prepare()
        parts = _parts(config, session, dashboard_url)
        return build(sealed(config), **parts, orders=rollout.all(partial(turn.begin, runs=rollout.runs)))


def _parts(config: ServeConfig, session: SystemSession, dashboard_url: str) -> dict[str, Any]:
    """Arguments of `build` other than configuration and orders. Raises, Effects: as `application`."""
    identity = found_identity(GcsStore(), session.name, salt_of(config))
    if config.kvcache.replicas:
        start_pool_control(control_settings(config, identity.session))  # next to the replicas
    start_board(sealed(config), APP_NAME, identity.session)
    return {
        "secret": identity.secrets[0],
        "session": identity.session,
        "pool_salt": identity.pool_salt,
        "pool_folder": session.pool_folder,
        "dashboard_url": dashboard_url,
    }


def _cause(failure: str) -> tuple[str, str]:
    """The line of a failed deployment that explains it, which is the exception that a replica's constructor raised, and
    the deployment's name; empty = unknown.
    """
    application = serve.status().applications.get(APP_NAME)
    there = application.deployments.items() if application else ()
    messages = {name: deployment.message for name, deployment in there if deployment.message}
    for name, message in messages.items():
        raised = [line.strip() for line in message.splitlines() if _RAISED.match(line.strip())]
        if raised:
            return raised[-1].partition(": ")[2], name
    name, message = next(iter(messages.items()), ("", failure))
    return message.splitlines()[0], name


def _log_of(folder: Path, name: str) -> str:
    """Text about the log of a deployment's latest replica, or about all logs if it has none on this machine."""
    logs = sorted(folder.glob(f"replica_{APP_NAME}_{name}_*.log"), key=lambda path: path.stat().st_mtime)
    return f"log: {logs[-1]}" if name and logs else f"logs: {folder}"


def wait_ready(
    config: ServeConfig,
    cluster: Cluster,
    deadline_s: float = READY_DEADLINE_S,
    say: Callable[[str], object] = lambda _: None,
) -> str:
    """Wait until a gateway reports ready. Returns: its base URL. Raises: StartError if none is ready in time."""
    deadline = time.monotonic() + deadline_s
    start_wait = StartWait("a gateway that can serve", time.monotonic())
    while True:
        ready = cluster.ready_gateways(config)
        if ready:
            return ready[0]
        if (line := start_wait.line(time.monotonic(), *load_and_cores())) is not None:
            say(line)
        if time.monotonic() > deadline:
            raise StartError(
                f"no gateway is ready on port {config.gateway.port} after {deadline_s:.0f} s"
                f" (logs: {cluster.logs}/serve)"
            )
        time.sleep(0.05)


def is_ready(url: str) -> bool:
    """Whether the gateway at a base URL can serve now."""
    try:
        fetch(urllib.request.Request(f"{url}/ready"), 2.0, direct=True)
    except OSError:
        return False
    return True


def endpoint(config: ServeConfig) -> str:
    """Base URL of the endpoint on the gateway's machine."""
    host = "127.0.0.1" if config.gateway.host in ("0.0.0.0", "::") else config.gateway.host
    return base_url(host, config.gateway.port)


def base_url(host: str, port: int) -> str:
    """URL of a gateway."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
