"""`cloudmatrix serve`: check, start Ray, deploy, print the addresses, supervise, and stop everything.

All checks run before the first process starts, so a mistake costs one second and one line of output.
"""

import contextlib
import logging
import queue
import signal
import sys

from ray import serve
from ray.serve.exceptions import DeploymentUnavailableError

from loadgen.exit_codes import ExitCode
from serving.cluster.disk_watch import full_disk
from serving.cluster.session import SystemSession
from serving.cluster.shutdown import ANNOUNCE_S, announce_shutdown, close_logs
from serving.config.serve import ServeConfig
from serving.config.upgrade_rules import GATEWAY
from serving.launch.app import APP_NAME
from serving.launch.banner import banner, computing_here
from serving.launch.deploying import StartError, deploy_and_wait, endpoint
from serving.launch.detached import notify_ready, taken_address
from serving.launch.local_cluster import LocalCluster
from serving.launch.patience import load_here
from serving.launch.phases import DeployPhases, LaunchPhases, ray_messages_in
from serving.launch.ray_parts import exited_part, too_slow
from serving.launch.worker_seed import WorkerSeed
from serving.terminal import ending_signals, print_text, say

logger = logging.getLogger(__name__)

TEND_PERIOD_S = 0.25
RETRY_PAUSE_S = 5.0
RAY_MESSAGES = "launcher.log"
"""File for what Ray writes to this process's standard error during a start, next to its other logs."""


def serve_forever(
    config: ServeConfig, session: SystemSession, seed: WorkerSeed | None = None, phases: LaunchPhases | None = None
) -> int:
    """Serve until SIGINT, SIGTERM or SIGHUP, then let requests finish. Call `preflight` first. Returns: the exit code.

    Args:
        seed: forks Ray's workers; started by the same thread, and stopped here. By default Ray starts them.
        phases: of this start, in the first one.
    Effects: all started processes are stopped in all cases. Logs are kept unless the stop was requested.
    """
    asked_by = taken_address()
    interrupt = Interrupt()
    cluster = LocalCluster(config.cluster, session, config.health, interrupt.asked, seed)
    keep_logs = True
    phases = phases or LaunchPhases()
    try:
        code = _serve(config, cluster, interrupt, asked_by, phases)
        keep_logs = code != 0
        if code and (why := full_disk(session.folder)) is not None:
            print_text(f"cloudmatrix: {why}", sys.stderr)
    finally:
        phases.close()
        cluster.stop(keep_logs=keep_logs)
    return code


def _serve(
    config: ServeConfig, cluster: LocalCluster, interrupt: "Interrupt", asked_by: str | None, phases: LaunchPhases
) -> int:
    """Returns: the exit code. Effects: tells `asked_by` once it serves; the signals are ignored during shutdown."""
    try:
        interrupt.install()
        computing = _start(config, cluster, interrupt, phases)
        ending = "" if asked_by else "\nCtrl-C ends everything.\n"
        print_text(banner(config, cluster, computing=computing) + ending)
        notify_ready(asked_by)
        lost = _tend(cluster, interrupt)
        if lost is not None:
            print_text(f"cloudmatrix: {lost}", sys.stderr)
            return ExitCode.FAILURE
        announce_shutdown(config.gateway.drain_s, interrupt, lambda seconds: _drain_gateways(cluster, seconds), say)
        if config.engine.decision_log:
            close_logs(lambda seconds: _close_logs(cluster, [GATEWAY, *config.pools], seconds), say)
    except KeyboardInterrupt:
        phases.close()
        say("stopping ...")
    except StartError as error:
        print_text(f"cloudmatrix: {phases.failure()}: {error}", sys.stderr)
        return ExitCode.USAGE
    finally:
        interrupt.raise_no_more()
    return 0


def _drain_gateways(cluster: LocalCluster, seconds: float) -> int:
    cluster.connect()
    answers = serve.get_deployment_handle(GATEWAY, APP_NAME).broadcast("drain", seconds)
    replies = answers.results(timeout_s=seconds + 2 * ANNOUNCE_S, return_exceptions=True)
    return sum(ended for ended in replies if isinstance(ended, int))


def _close_logs(cluster: LocalCluster, deployments: list[str], seconds: float) -> int:
    """Returns: number of replicas that did not close their logs. Raises: Ray's errors."""
    cluster.connect()
    answers = [serve.get_deployment_handle(name, APP_NAME).broadcast("close_log") for name in deployments]
    failed = 0
    for answer in answers:
        with contextlib.suppress(DeploymentUnavailableError):  # a pool without replicas
            replies = answer.results(timeout_s=seconds, return_exceptions=True)
            failed += sum(isinstance(one, BaseException) for one in replies)
    return failed


class Interrupted(KeyboardInterrupt):
    """A signal arrived while the pools start.

    Not KeyboardInterrupt itself: when that passes through `exec` of a string, as in every dataclass definition, CPython
    records it permanently and ends the process by SIGINT instead of its exit code, although it was caught.
    """


class Interrupt:
    """Handler of SIGINT, SIGTERM, SIGHUP: raises KeyboardInterrupt while the pools start; later ends `wait`.

    While Ray itself starts, signals are only recorded, because a half-started Ray cannot be stopped.
    """

    def __init__(self) -> None:
        self._asked = False
        self._raises = False
        self._hurried = False
        # Not an Event: a signal handler that interrupts the holder of its lock would deadlock.
        self._signals: queue.SimpleQueue[None] = queue.SimpleQueue()

    def install(self) -> None:
        """Install the handlers. Call it again after Ray has started, which installs its own for SIGTERM."""
        for kind in ending_signals():
            signal.signal(kind, self._handle)

    def raise_now(self) -> None:
        """Raise KeyboardInterrupt on later stop requests, and immediately if one is pending."""
        self._raises = True
        if self._asked:
            raise Interrupted

    def raise_no_more(self) -> None:
        """Only record later stop requests."""
        self._raises = False

    def wait(self, seconds: float | None = None) -> bool:
        """Block until a stop request or the timeout [s]. Returns: whether a stop was requested."""
        self.raise_no_more()
        if not self._asked:
            with contextlib.suppress(queue.Empty):
                self._signals.get(timeout=seconds)
        return self._asked

    def asked(self) -> bool:
        """Whether a stop was requested."""
        return self._asked

    def hurried(self) -> bool:
        """Whether a second stop request came. Effects: reinstalls the SIGTERM handler, which Ray may have replaced."""
        self.install()
        return self._hurried

    def _handle(self, *_: object) -> None:
        if self._asked:
            self._hurried = True
            return
        self._asked = True
        self._signals.put(None)
        if self._raises:
            raise Interrupted


def _tend(cluster: LocalCluster, interrupt: Interrupt) -> str | None:
    """Keep Ray alive until a stop request. Returns: why the system cannot continue, or None."""
    while not interrupt.wait(TEND_PERIOD_S):
        try:
            lost = cluster.tend()
        except Exception:  # any error of Ray; the next attempt may succeed
            logger.exception("could not restart a part of Ray; trying again")
            continue
        if lost is not None:
            return lost
    return None


def _start(config: ServeConfig, cluster: LocalCluster, interrupt: Interrupt, phases: LaunchPhases) -> str:
    """Start Ray, deploy, and wait until a gateway can serve. Returns: name of the compute device, for people."""
    phases.next("Ray")
    with ray_messages_in(cluster.session.ray_folder / RAY_MESSAGES):
        _start_ray(cluster, interrupt)
        cluster.session.note_addresses(cluster.dashboard_url, endpoint(config), config.model.path)
        interrupt.install()
        interrupt.raise_now()
        nodes = len(config.cluster.nodes)
        deploying = DeployPhases(config, phases, f"{nodes} node{'s' * (nodes > 1)}, {config.cluster.npus} virtual NPUs")
        deploy_and_wait(config, cluster, say, phases=deploying)
        cluster.wait_for_dashboard()
        computing = computing_here()
        cluster.let_go()
    phases.end()
    return computing


def _start_ray(cluster: LocalCluster, interrupt: Interrupt) -> None:
    """Start Ray; on a machine that is too busy, retry once. Raises: StartError; Interrupted between the attempts."""
    for tries_left in (1, 0):
        try:
            return cluster.start()
        except Exception as error:  # Ray raises bare Exception, with many lines
            if tries_left and too_slow(error):
                say(
                    f"Ray did not start in time: is the machine busy? Trying once again in"
                    f" {RETRY_PAUSE_S:.0f} s ({load_here()}) ..."
                )
                cluster.abandon()
                if interrupt.wait(RETRY_PAUSE_S):
                    raise Interrupted from None
                continue
            if interrupt.asked():
                cluster.abandon()
                raise Interrupted from None
            if part := exited_part():
                raise StartError(f"its {part} exited (log: {cluster.logs}/{part}.out)") from error
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise StartError(f"{reason} (logs: {cluster.logs})") from error
