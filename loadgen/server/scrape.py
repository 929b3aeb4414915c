"""Reads the server's /metrics during a run, in a separate thread; its errors never fail the run.

    start()          first poll at once, then one each second          stop(): one last poll
       |                 |       |       |       |       |                |
       before            ... the run ...                                  after

The store is bounded: when it is full, every second sample is dropped and the interval doubles, so that a run of a day
keeps its whole time line.
"""

import contextlib
import threading
import time
from collections.abc import Sequence

from loadgen.errors import ServerError, ServerUnreachable
from loadgen.server.connection import QueryConnection, refuse
from loadgen.server.series import MetricsScrape, ServerSeries, parse, series_of

METRICS = "/metrics"


class Scraper:
    """One run's samples of one server's metrics. Start it once, stop it once."""

    def __init__(
        self,
        url: str,
        headers: Sequence[tuple[str, str]] = (),
        *,
        verify_tls: bool = True,
        interval_s: float = 1.0,
        timeout_s: float = 2.0,
        most_scrapes: int = 4096,
    ) -> None:
        """Prepare; without a request yet.

        Args:
            url: of the page itself, see `metrics_url`.
            interval_s: between polls. timeout_s: of one poll.
            most_scrapes: stored at the same time; at least 4.
        Raises: UsageError if `url` is no address.
        """
        self._url = url
        self._path = _path_of(url)
        self._connection = QueryConnection(url.removesuffix(self._path), headers, verify_tls=verify_tls)
        self._path = self._path or "/"
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._most_looks = max(4, most_scrapes)
        self._lock = threading.Lock()
        self._looks: list[MetricsScrape] = []
        self._failures = 0
        self._problem = ""
        self._stopping = threading.Event()
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics-scraper", daemon=True)

    def start(self) -> None:
        """Start the thread, and wait for the first scrape or its failure, so that it shows the server before the run.

        Effects: a thread, until `stop`.
        """
        self._thread.start()
        self._first.wait(self._timeout_s + 1.0)

    def stop(self) -> None:
        """Poll a last time and end the thread. Waits at most as long as two polls may take; may be called twice."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(2 * self._timeout_s + 1.0)

    def series(self, start_s: float) -> ServerSeries:
        """Samples so far, on the run's time axis.

        Args:
            start_s: the run's start, as `time.monotonic()` had it.
        """
        return series_of(self._kept(), start_s)

    def problem(self) -> str:
        """Why figures of the server are missing, in one line; empty if none are."""
        with self._lock:
            if not self._failures:
                return ""
            if not self._looks:
                return f"no figures of the server's own: {self._problem}"
            looks = "1 look" if self._failures == 1 else f"{self._failures} looks"
            return f"{looks} at {self._url} failed: {self._problem}"

    def _kept(self) -> list[MetricsScrape]:
        with self._lock:
            return list(self._looks)

    def _run(self) -> None:
        """The thread: polls at fixed times, and once more on stopping."""
        due_s = time.monotonic()
        with contextlib.closing(self._connection):
            while True:
                last = self._stopping.is_set()
                self._look()
                self._first.set()
                if last:
                    return
                now_s = time.monotonic()
                due_s = max(due_s + self._interval_s, now_s)
                self._stopping.wait(due_s - now_s)

    def _look(self) -> None:
        """Poll once; a failure is counted."""
        asked_s = time.monotonic()
        try:
            reply = self._connection.get(self._path, self._timeout_s)
            answered_s = time.monotonic()
            if reply.status != 200:
                refuse(self._connection, self._path, reply)
            page = parse(reply.body.decode("utf-8", errors="replace"))
            if page.is_empty():
                raise ServerError(f"{self._url} shows none of the known names (vllm:..., cloudmatrix:..., sglang:...)")
        except (ServerError, ServerUnreachable) as error:
            self._failed(str(error))
        except Exception as error:  # the run continues whatever a foreign page does to the parser
            self._failed(f"{self._url} is not in Prometheus' text format ({type(error).__name__})")
        else:
            self._keep(MetricsScrape((asked_s + answered_s) / 2, page))

    def _failed(self, why: str) -> None:
        with self._lock:
            self._failures += 1
            self._problem = why

    def _keep(self, look: MetricsScrape) -> None:
        """Store a sample; thin out a full store, except its first sample, which shows the server before the run."""
        with self._lock:
            self._looks.append(look)
            if len(self._looks) >= self._most_looks:
                del self._looks[1::2]
                self._interval_s *= 2


def metrics_url(base_url: str) -> str:
    """Where a server has its metrics: next to /v1, under the same path prefix."""
    return f"{base_url.rstrip('/')}{METRICS}"


def _path_of(url: str) -> str:
    rest = url.partition("://")[2]
    slash = rest.find("/")
    return rest[slash:] if slash >= 0 else ""
