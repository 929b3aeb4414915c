"""`cloudmatrix serve`: check first, start Ray, deploy, say where everything is, stay, and end all of it.

Everything that can be wrong is checked before the first process starts, so that a mistake costs a second and one line.
"""

import contextlib
import logging
import os
import queue
import re
import secrets
import signal
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from ray import serve
from ray.serve.exceptions import DeploymentUnavailableError

from serving.cluster.farewell import FAREWELL_S, close_logs, farewell
from serving.cluster.session import SystemSession
from serving.config.checks import replicas_at_start
from serving.config.packing import can_pack
from serving.config.serve import ServeConfig
from serving.errors import ServingError
from serving.gateway.live.sealing import salt_of, sealed
from serving.http_client import fetch
from serving.kvpool.live.pool_control import control_settings, pool_control
from serving.launch.app import APP_NAME, GATEWAY, KVCACHE, build
from serving.launch.cluster import LocalCluster
from serving.launch.ray_parts import too_slow
from serving.scaling.dashboard.once import issue
from serving.scaling.live.scaling_board import start_board
from serving.terminal import ending_signals, own_command, silence

logger = logging.getLogger(__name__)

READY_DEADLINE_S = 120.0
TEND_PERIOD_S = 0.25
RETRY_PAUSE_S = 5.0
_RAISED = re.compile(r"(hardware|serving)\.errors\.\w+: ")


def serve_forever(config: ServeConfig, session: SystemSession) -> int:
    """Serve until SIGINT, SIGTERM or SIGHUP, then let requests end. `preflight` comes first. Returns: the exit code.

    Effects: whatever happens, what was started is ended. Logs stay unless it ended as it was asked to.
    """
    cluster = LocalCluster(config.cluster, session, config.health)
    keep_logs = True
    try:
        code = _serve(config, cluster, Interrupt())
        keep_logs = code != 0
    finally:
        cluster.stop(keep_logs=keep_logs)
    return code


def _serve(config: ServeConfig, cluster: LocalCluster, interrupt: "Interrupt") -> int:
    """Returns: the exit code. Effects: these signals are without effect afterwards, while everything is ended."""
    try:
        interrupt.install()
        _start(config, cluster, interrupt)
        _print(banner(config, cluster))
        lost = _tend(cluster, interrupt)
        if lost is not None:
            _print(f"cloudmatrix: {lost}", sys.stderr)
            return 3
        farewell(config.gateway.drain_s, interrupt, lambda seconds: _drain_gateways(cluster, seconds), _say)
        if config.engine.decision_log:
            close_logs(lambda seconds: _close_logs(cluster, [GATEWAY, *config.pools], seconds), _say)
    except KeyboardInterrupt:
        _say("stopping ...")
    except StartError as error:
        _print(f"cloudmatrix: {error}", sys.stderr)
        return 2
    finally:
        interrupt.raise_no_more()
    return 0


def _drain_gateways(cluster: LocalCluster, seconds: float) -> int:
    """Implements `farewell.Tell`. Raises: whatever Ray raises."""
    cluster.connect()
    answers = serve.get_deployment_handle(GATEWAY, APP_NAME).broadcast("drain", seconds)
    told = answers.results(timeout_s=seconds + 2 * FAREWELL_S, return_exceptions=True)
    return sum(ended for ended in told if isinstance(ended, int))


def _close_logs(cluster: LocalCluster, deployments: list[str], seconds: float) -> int:
    """Implements `farewell.Tell`. Returns: replicas that did not close theirs. Raises: whatever Ray raises."""
    cluster.connect()
    answers = [serve.get_deployment_handle(name, APP_NAME).broadcast("close_log") for name in deployments]
    failed = 0
    for answer in answers:
        with contextlib.suppress(DeploymentUnavailableError):  # a pool without replicas
            told = answer.results(timeout_s=seconds, return_exceptions=True)
            failed += sum(isinstance(one, BaseException) for one in told)
    return failed


class Interrupted(KeyboardInterrupt):
    """A signal came while the pools start.

    Not KeyboardInterrupt itself: if that passes through `exec` of a string, as every dataclass is made by, CPython
    notes it for good and ends the process by SIGINT instead of its exit code, although it was caught.
    """


class Interrupt:
    """SIGINT, SIGTERM, SIGHUP: while the pools start they raise KeyboardInterrupt, later one ends `wait`.

    While Ray itself starts they are only noted, because a half-started Ray could not be ended.
    """

    def __init__(self) -> None:
        self._asked = False
        self._raises = False
        self._hurried = False
        # Not an Event: its lock, taken by a handler that interrupts whoever holds it, would be waited for for ever.
        self._signals: queue.SimpleQueue[None] = queue.SimpleQueue()

    def install(self) -> None:
        """Take the signals over. Again after Ray has started, which takes SIGTERM for itself."""
        for kind in ending_signals():
            signal.signal(kind, self._handle)

    def raise_now(self) -> None:
        """From now on, and if asked before, raise KeyboardInterrupt."""
        self._raises = True
        if self._asked:
            raise Interrupted

    def raise_no_more(self) -> None:
        """From now on only note that it was asked."""
        self._raises = False

    def wait(self, seconds: float | None = None) -> bool:
        """Block until asked to stop, or for so long. Returns: whether it was asked."""
        self.raise_no_more()
        if not self._asked:
            with contextlib.suppress(queue.Empty):
                self._signals.get(timeout=seconds)
        return self._asked

    def hurried(self) -> bool:
        """Whether it was asked once more. Effects: takes back SIGTERM, which Ray may have taken on another thread."""
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


class StartError(ServingError):
    """The system did not come up; the message says why."""


def _tend(cluster: LocalCluster, interrupt: Interrupt) -> str | None:
    """Keep Ray alive until asked to stop. Returns: why the system cannot go on, or None."""
    while not interrupt.wait(TEND_PERIOD_S):
        try:
            lost = cluster.tend()
        except Exception:  # whatever Ray raises: what did not come up now may next time
            logger.exception("could not start a part of Ray again; trying again")
            continue
        if lost is not None:
            return lost
    return None


def _start(config: ServeConfig, cluster: LocalCluster, interrupt: Interrupt) -> None:
    begun = time.monotonic()
    nodes = len(config.cluster.nodes)
    _say(f"starting Ray: {nodes} node{'s' * (nodes > 1)}, {config.cluster.npus} virtual NPUs ...")
    _start_ray(cluster, interrupt)
    cluster.session.note_dashboard(cluster.dashboard_url)
    interrupt.install()
    interrupt.raise_now()
    pools = [*config.pools, *([KVCACHE] if config.kvcache.replicas else [])]
    _say(f"deploying {', '.join(pools)} and gateway ...")
    deploy(config, cluster)
    wait_ready(config, cluster.session.logs)
    cluster.let_go()
    _say(f"ready after {time.monotonic() - begun:.1f} s")


def _start_ray(cluster: LocalCluster, interrupt: Interrupt) -> None:
    """Start it, on a machine that is too busy at the second try. Raises: StartError; Interrupted between the two."""
    for tries_left in (1, 0):
        try:
            return cluster.start()
        except Exception as error:  # Ray raises bare Exception, of many lines
            if tries_left and too_slow(error):
                _say(f"Ray did not start in time: is the machine busy? Trying once again in {RETRY_PAUSE_S:.0f} s ...")
                cluster.abandon()
                if interrupt.wait(RETRY_PAUSE_S):
                    raise Interrupted from None
                continue
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise StartError(f"Ray did not start: {reason} (logs: {cluster.session.logs})") from error


def deploy(config: ServeConfig, cluster: LocalCluster) -> None:
    """Deploy the application on a started cluster and wait until its replicas run.

    Raises: StartError with the first cause that a replica gave.
    """
    pool_salt = salt_of(config)
    config = sealed(config)
    with_proxy = config.gateway.server == "serve"
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    serve.start(
        proxy_location="HeadOnly" if with_proxy else "Disabled",
        http_options={"host": config.gateway.host, "port": config.gateway.port},
        logging_config={"enable_access_log": False},
    )
    if config.kvcache.replicas:
        pool_control(control_settings(config, cluster.session.name, founding=True))  # it starts beside the replicas
    start_board(config, APP_NAME, cluster.session.folder)
    threads = config.threads_per_instance(os.cpu_count() or 1)
    app = build(
        config,
        secret=secrets.token_hex(32),
        session=cluster.session.name,
        threads=threads,
        pool_salt=pool_salt,
        pool_folder=cluster.session.pool_folder,
        dashboard_url=cluster.dashboard_url,
    )
    try:
        serve.run(app, name=APP_NAME, route_prefix="/", external_scaler_enabled=True)
    except RuntimeError as error:
        raise StartError(f"{_cause(str(error))} (logs: {cluster.session.logs}/serve)") from error
    finally:
        logging.getLogger("ray.serve").setLevel(logging.WARNING)


def _cause(failure: str) -> str:
    """The line of a failed deployment that a person needs: the exception that a replica's constructor raised."""
    application = serve.status().applications.get(APP_NAME)
    messages = [deployment.message for deployment in application.deployments.values()] if application else []
    for message in messages:
        raised = [line.strip() for line in message.splitlines() if _RAISED.match(line.strip())]
        if raised:
            return raised[-1].partition(": ")[2]
    return next((message for message in messages if message), failure).splitlines()[0]


def wait_ready(config: ServeConfig, logs: Path, deadline_s: float = READY_DEADLINE_S) -> None:
    """Wait until a gateway says that it can serve. Raises: StartError if none does in time."""
    deadline = time.monotonic() + deadline_s
    question = urllib.request.Request(f"{endpoint(config)}/ready")
    while True:
        with contextlib.suppress(OSError):
            fetch(question, 2.0, direct=True)
            return
        if time.monotonic() > deadline:
            raise StartError(f"{question.full_url} is not ready after {deadline_s:.0f} s (logs: {logs}/serve)")
        time.sleep(0.05)


def endpoint(config: ServeConfig) -> str:
    """Base URL of the endpoint as this machine reaches it."""
    host = "127.0.0.1" if config.gateway.host in ("0.0.0.0", "::") else config.gateway.host
    return f"http://{f'[{host}]' if ':' in host else host}:{config.gateway.port}"


def banner(config: ServeConfig, cluster: LocalCluster) -> str:
    """Text for a newcomer after the start: addresses, the token, a command to paste."""
    key = ' \\\n  -H "Authorization: Bearer $API_KEY"' if config.api_keys_required else ""
    name = config.model.name or Path(config.model.path).name
    url, command = endpoint(config), own_command()
    return f"""
  endpoint         {url}/v1   (model: {name})
{_placeholder_line(config)}{_page_line(config)}{_pool_line(config)}  Ray dashboard    {cluster.dashboard_url}
  dashboard token  {cluster.session.token}
  pools page       {cluster.dashboard_url}/pools#once={issue(cluster.session.token, time.time())}
  status           {command} status --url {url}{" --api-key $API_KEY" if key else ""}
  scale a pool     {command} scale {one_more(config)} --dashboard {cluster.dashboard_url}

curl {url}/v1/chat/completions{key} \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "{name}", "stream": true, "max_tokens": 120,
       "messages": [{{"role": "user", "content": "Tell me a story about a little dog and a ball."}}]}}'

Ctrl-C ends everything.
"""


def one_more(config: ServeConfig) -> str:
    """A pool and a number of replicas to try: one more of the last pool that has NPUs and UB memory for it, if any."""
    pools, at_start = config.pools, replicas_at_start(config)

    def grows(name: str) -> bool:
        more = [replace(need, replicas=need.replicas + (need.name == name)) for need in at_start]
        return can_pack(more, config.cluster.nodes)

    growing = [name for name in pools if grows(name)]
    name = [*pools, *growing][-1]
    return f"{name} {pools[name].replicas + (name in growing)}"


def _pool_line(config: ServeConfig) -> str:
    pool = config.kvcache
    if not pool.replicas:
        return ""
    servers = f"{pool.replicas} memory server{'s' * (pool.replicas > 1)}"
    disk = f" + {pool.ssd_mib} MiB on disk" if pool.ssd_mib else ""
    return f"  KV-cache pool    {servers}, {pool.ub_memory_mib} MiB{disk}{' each' * (pool.replicas > 1)}\n"


def _page_line(config: ServeConfig) -> str:
    """Where to chat; a browser has no key to send."""
    command = f"{own_command()} chat --url {endpoint(config)}"
    if config.api_keys_required:
        return f"  chat             {command} --api-key $API_KEY\n"
    return f"  chat             {endpoint(config)} in a browser, or {command}\n"


def _placeholder_line(config: ServeConfig) -> str:
    if config.engine.executor != "simulated":
        return ""
    return "  tokens           placeholders: simulated NPUs take the time of the model and compute no text\n"


def _say(text: str) -> None:
    _print(f"cloudmatrix: {text}")


def _print(text: str, stream: TextIO | None = None) -> None:
    """Print to standard output, or elsewhere. A pipe's reader, or a terminal, may be gone: nothing depends on it."""
    stream = stream or sys.stdout
    try:
        print(text, file=stream, flush=True)
    except OSError:
        silence(stream)
