"""Metrics of a gateway's requests, under vLLM's names so that existing dashboards work.

Request-level series (tokens, latencies, outcomes) are from the gateway, which handles each request exactly once;
instance-level series are from snapshots, see `instance_metrics`. No quantity is counted in both, so sums over `engine`
are correct. `engine` is the gateway's id in this module and the replica's id in `instance_metrics`. Series that name
tenants are in `system_metrics`, because not every scraper may see them. If several gateways share a port, each
exports the series of all, see `shared_metrics`.
"""

import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from serving.ids import ReplicaId
from serving.telemetry.exposition import exposed
from serving.telemetry.group_metrics import GroupBoard, GroupStats
from serving.telemetry.histogram import (
    CHOICES,
    PREEMPTIONS,
    SECONDS_PAUSE,
    SECONDS_PER_TOKEN,
    SECONDS_REQUEST,
    SECONDS_TTFT,
    BucketHistogram,
    Exemplars,
    NamedHistograms,
    cumulative,
    token_buckets,
)
from serving.telemetry.instance_metrics import InstanceBoard
from serving.telemetry.pool_metrics import MemoryServerBoard
from serving.telemetry.request_timeline import RESUME_SOURCES, RecentSessions, RequestTimeline
from serving.telemetry.shared_metrics import (
    GatewayNumbers,
    Joined,
    Others,
    families_of,
    newest_groups,
    newest_hosts,
    newest_instances,
    newest_servers,
    with_own_labels,
)
from serving.telemetry.stats import InstanceStats, MemoryServerStats
from serving.telemetry.system_metrics import HostBoard, NamespaceBoard, SystemBoard
from serving.values.expert_map import ExpertFacts

FINISHED_REASONS = ("stop", "length", "abort", "error")
LABELS = ("model_name", "engine")

REJECTIONS = ("overloaded", "unavailable")
MOST_PAUSED_TOOLS = 50
"""Tools with a series of their own, of all tenants; further ones are counted as `other`."""
AUDITS = ("sound", "unsound")
RECOMPUTED = ("timeout", "unreachable", "checksum", "gone", "error")
"""Values of `MissReason`."""

_BEGUN = "of prompts that an instance started to compute, counted once per request for any n"
_COUNTERS = {
    "prompt_tokens": ("vllm:prompt_tokens", f"Tokens {_BEGUN}"),
    "generation_tokens": ("vllm:generation_tokens", "Output tokens of all choices, with any finish reason"),
    "prompt_tokens_cached": ("vllm:prompt_tokens_cached", f"Cached tokens, not computed again, {_BEGUN}"),
    "resumptions": ("cloudmatrix:resumptions", "Resumptions of a choice on another instance after a failure"),
    "prompt_tokens_pulled": ("cloudmatrix:prompt_tokens_pulled", f"Tokens from the KV-cache pool, {_BEGUN}"),
}
_GOOD = "of choices that finished with stop or length"
_WHOLE = "of requests all of whose choices finished with stop or length"
_HISTOGRAMS = (
    ("vllm:time_to_first_token_seconds", "ttft", "From arrival to a choice's first token, with any finish reason [s]"),
    ("vllm:inter_token_latency_seconds", "inter_token", "Between two tokens of a choice, with any finish reason [s]"),
    (
        "vllm:request_time_per_output_token_seconds",
        "per_output_token",
        f"Mean time between tokens {_GOOD} and more than one token [s]",
    ),
    ("vllm:e2e_request_latency_seconds", "e2e", f"From arrival to the end, {_GOOD} [s]"),
    ("vllm:request_queue_time_seconds", "queue_time", f"Time in queues before the computation, {_GOOD} [s]"),
    (
        "vllm:request_inference_time_seconds",
        "inference_time",
        f"From the start of the computation to the last token, {_GOOD} [s]",
    ),
    (
        "vllm:request_prefill_time_seconds",
        "prefill_time",
        f"From the start of the computation to the first token, {_GOOD} [s]",
    ),
    ("vllm:request_decode_time_seconds", "decode_time", f"From the first token to the last, {_GOOD} [s]"),
    ("vllm:request_prompt_tokens", "prompt_length", f"Tokens of the prompt, {_GOOD}"),
    ("vllm:request_prefill_kv_computed_tokens", "kv_computed", f"Prompt tokens not cached, {_GOOD}"),
    ("vllm:request_generation_tokens", "generation_length", f"Output tokens {_GOOD}"),
    ("vllm:request_num_preemptions", "preemptions", f"Preemptions for lack of KV blocks, {_GOOD}"),
    ("vllm:request_max_num_generation_tokens", "longest", f"Output tokens of the longest choice, {_WHOLE}"),
    ("vllm:request_params_n", "params_n", f"Choices requested per prompt, {_WHOLE}"),
    ("vllm:request_params_max_tokens", "params_max_tokens", f"Requested limit of output tokens, {_WHOLE}"),
    ("http_request_duration_seconds", "http_seconds", "From request to the end of the response, all exchanges [s]"),
)
"""Name, attribute, and help text."""


class AdmissionLine(Protocol):
    """Requests waiting in the gateway's queue."""

    def __len__(self) -> int: ...

    @property
    def tokens(self) -> int:
        """Prompt tokens of waiting requests."""
        ...


def _registry(*boards: Collector) -> CollectorRegistry:
    registry = CollectorRegistry()
    for board in boards:
        registry.register(board)
    return registry


class GatewayMetrics(Collector):
    """All metrics of one gateway process. Not thread-safe: used from its event loop."""

    def __init__(
        self,
        model_name: str,
        *,
        engine: str = "0",
        name: str | None = None,
        max_model_len: int = 131072,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model_name = model_name
        self.engine = engine
        self.clock = clock
        self.in_flight = 0
        self.others: Others | None = None
        """The other gateways; None if there are none."""
        self.ask: Callable[[], Awaitable[None]] = no_questions
        """Requests counters from instances; called before a page is made."""
        self.refresh: Callable[[], None] = lambda: None
        """Publishes the state of instances and memory servers; called on each scrape."""
        self._name = name or uuid.uuid4().hex
        self._begun = time.time()
        self._serial = 0
        self.line: AdmissionLine | None = None
        """The gateway's queue; None if requests never queue there."""
        self.counts: Counter[str] = Counter(dict.fromkeys(_COUNTERS, 0))
        self.outcomes: Counter[str] = Counter(dict.fromkeys(FINISHED_REASONS, 0))
        self.rejections: Counter[str] = Counter(dict.fromkeys(REJECTIONS, 0))
        self.recomputed: Counter[str] = Counter(dict.fromkeys(RECOMPUTED, 0))
        self.audits: Counter[str] = Counter(dict.fromkeys(AUDITS, 0))
        self.hints, self.pauses = Counter[tuple[str, str]](), NamedHistograms(SECONDS_PAUSE, MOST_PAUSED_TOOLS)
        self.resume_tokens: Counter[str] = Counter(dict.fromkeys(RESUME_SOURCES, 0))
        self._sessions = RecentSessions()
        self.http: Counter[tuple[str, str, int]] = Counter()
        self.http_seconds = BucketHistogram(SECONDS_REQUEST)
        lengths = token_buckets(max_model_len)
        self.ttft, self._traced = BucketHistogram(SECONDS_TTFT), Exemplars(SECONDS_TTFT)
        self.inter_token, self.per_output_token = (BucketHistogram(SECONDS_PER_TOKEN) for _ in range(2))
        self.e2e = BucketHistogram(SECONDS_REQUEST)
        self.queue_time, self.prefill_time, self.decode_time = (BucketHistogram(SECONDS_REQUEST) for _ in range(3))
        self.prompt_length = BucketHistogram(lengths)
        self.inference_time = BucketHistogram(SECONDS_REQUEST)
        self.generation_length = BucketHistogram(lengths)
        self.kv_computed = BucketHistogram(lengths)
        self.preemptions = BucketHistogram(PREEMPTIONS)
        self.longest = BucketHistogram(lengths)
        self.params_n = BucketHistogram(CHOICES)
        self.params_max_tokens = BucketHistogram(lengths)
        self.instances = InstanceBoard(model_name)
        self.groups = GroupBoard(model_name)
        self.hosts = HostBoard(model_name)
        self.servers = MemoryServerBoard()
        self.system = SystemBoard(model_name)
        self.namespaces = NamespaceBoard(model_name, engine)
        self.registry = _registry(self, self.instances, self.groups, self.hosts, self.servers, self.system)
        self._tenants_only = _registry(self.namespaces)

    def expect(self, namespaces: Iterable[str], exchanges: Iterable[tuple[str, str, int]]) -> None:
        """Export series of these tenants and exchanges from the start, so that their first event is an increase."""
        self.namespaces.expect(namespaces)
        self.http.update(dict.fromkeys(exchanges, 0))

    def request_started(
        self,
        prompt_lengths: Sequence[int],
        n: int,
        max_tokens: int | None,
        arrived: float,
        namespace: str = "default",
        session: str = "",
    ) -> RequestTimeline:
        """Count an accepted request that arrived at `arrived` (this object's clock). Returns: its timeline."""
        self.in_flight += 1
        known = self._sessions.note(namespace, session)
        return RequestTimeline(self, prompt_lengths, n, max_tokens, arrived, namespace, next_turn=known)

    def rejected(self, reason: str) -> None:
        """Count a request that admission refused: `overloaded` or `unavailable`."""
        self.rejections[reason] += 1

    def audited(self, *, sound: bool) -> None:
        """Count a finished audit of the KV-cache pool. `sound`: every server responded and no fault was found."""
        self.audits["sound" if sound else "unsound"] += 1

    def hinted(self, action: str, outcome: str) -> None:
        """Count an action of KV hints. `action`: one of a fixed set of names."""
        self.hints[(action, outcome)] += 1

    def paused(self, tool: str, seconds: float) -> None:
        """Count a pause between a call of this tool and the session's next request."""
        self.pauses.observe(tool, seconds)

    def http_request(self, method: str, handler: str, status: int, seconds: float) -> None:
        """Count a finished HTTP exchange. `handler` is a route's pattern, never a raw path."""
        self.http[(method, handler, status)] += 1
        self.http_seconds.observe(seconds)

    def requests_by_route(self) -> dict[str, int]:
        """Number of POST requests by route."""
        found: Counter[str] = Counter()
        for (method, handler, _), count in self.http.items():
            if method == "POST":
                found[handler] += count
        return dict(found)

    def traced(self, first_token_s: float, trace_id: str, at: float) -> None:
        """Note a choice's first token in a trace that is exported, see `Exemplars.note`."""
        self._traced.note(first_token_s, trace_id, at)

    def publish_instance(self, stats: InstanceStats) -> None:
        """Store an instance's latest snapshot."""
        self.instances.publish(stats)

    def publish_expert_rank(self, replica: ReplicaId, pool: str, rank: int, facts: ExpertFacts) -> None:
        """Store the latest facts of a rank without sequences."""
        self.instances.publish_expert_rank(replica, pool, rank, facts)

    def retain_instances(self, alive: Iterable[str]) -> None:
        """Drop instances that are not among `alive` (replica ids), with their series."""
        self.instances.retain(alive)

    def publish_groups(self, groups: Iterable[GroupStats]) -> None:
        """Replace the statistics of all groups of ranks; groups not listed have ended."""
        self.groups.publish(groups)

    def publish_servers(self, servers: Sequence[MemoryServerStats]) -> None:
        """Replace the statistics of all memory servers; servers not listed have left.

        A server whose numbers are unknown has no series: a counter that dropped to zero and recovered would look like a
        burst of everything since the server's start.
        """
        heard = [stats for stats in servers if stats.heard]
        self.servers.publish(heard)
        self.namespaces.publish_servers({stats.server: stats.namespaces for stats in heard})

    def render(self, *, namespaces: bool = False, openmetrics: bool = False) -> bytes:
        """The Prometheus text.

        Args:
            namespaces: include the series that name tenants.
            openmetrics: use the OpenMetrics format, which has exemplars.
        """
        self.refresh()
        return exposed([self.registry, *([self._tenants_only] if namespaces else [])], openmetrics=openmetrics)

    async def render_own(self, *, namespaces: bool = False, openmetrics: bool = False) -> bytes:
        """Render the series of this gateway alone, for scrapers that discover each gateway.

        Series of instances, groups, memory servers and the system are only on the page of the first live gateway by
        name: a sum over the pages of all gateways contains each of them once.
        """
        await self.ask()
        if self.others is None or await self.others.first(self._name):
            return self.render(namespaces=namespaces, openmetrics=openmetrics)
        self.refresh()
        return exposed([self, *([self._tenants_only] if namespaces else [])], openmetrics=openmetrics)

    async def render_all(self, *, namespaces: bool = False, openmetrics: bool = False) -> bytes:
        """Render the series of all gateways together, and those of instances and servers once; see `render`."""
        await self.ask()
        others = await self.others.numbers() if self.others is not None else ()
        if not others:
            return self.render(namespaces=namespaces, openmetrics=openmetrics)
        gateways = with_own_labels([self.numbers(), *others])
        instances, servers = InstanceBoard(self.model_name), MemoryServerBoard()
        groups, hosts = GroupBoard(self.model_name), HostBoard(self.model_name)
        for stats in newest_instances(gateways):
            instances.publish(stats)
        groups.publish(newest_groups(gateways))
        servers.publish(newest_servers(gateways))
        hosts.publish(newest_hosts(gateways))
        pages = [Joined(one.families for one in gateways), instances, groups, hosts, servers]
        if namespaces:
            pages.append(Joined(one.tenants for one in gateways))
        return exposed(pages, openmetrics=openmetrics)

    async def load(self) -> int:
        """Requests in flight, in all gateways."""
        others = await self.others.numbers() if self.others is not None else ()
        return self.in_flight + sum(one.load for one in others)

    def numbers(self) -> GatewayNumbers:
        """Metrics snapshot for peer gateways."""
        self.refresh()
        self._serial += 1
        return GatewayNumbers(
            gateway=self._name,
            serial=self._serial,
            engine=self.engine,
            begun=self._begun,
            load=self.in_flight,
            families=(*families_of(self), *families_of(self.system)),
            tenants=families_of(self.namespaces),
            instances=tuple(self.instances.snapshots()),
            servers=self.servers.servers,
            groups=self.groups.groups,
            hosts=self.hosts.hosts,
        )

    def collect(self) -> Iterable[Metric]:
        """All metrics of this gateway, for the registry."""
        own = (self.model_name, self.engine)
        for key, (name, text) in _COUNTERS.items():
            yield _counter(name, text, LABELS, {own: self.counts[key]})
        by_reason = {(*own, reason): count for reason, count in self.outcomes.items()}
        yield _counter(
            "vllm:request_success",
            "Finished choices, by finish reason, failed ones included",
            (*LABELS, "finished_reason"),
            by_reason,
        )
        rejected = {(*own, reason): count for reason, count in self.rejections.items()}
        yield _counter("vllm:admission_rejections", "Requests refused by admission", (*LABELS, "reason"), rejected)
        cached, pulled = self.counts["prompt_tokens_cached"], self.counts["prompt_tokens_pulled"]
        by_source = {
            (*own, "local_compute"): self.counts["prompt_tokens"] - cached,
            (*own, "local_cache_hit"): cached - pulled,
            (*own, "external_kv_transfer"): pulled,
        }
        text = f"Tokens by source of their KV: computed, the instance's cache, the KV-cache pool, {_BEGUN}"
        yield _counter("vllm:prompt_tokens_by_source", text, (*LABELS, "source"), by_source)
        resumed = {(*own, source): count for source, count in self.resume_tokens.items()}
        text = "Tokens of a session's later prompts by source of their KV: the instance, the pool's tiers, computed"
        yield _counter("cloudmatrix:kv_resume_tokens", text, (*LABELS, "from"), resumed)
        recomputed = {(*own, reason): count for reason, count in self.recomputed.items()}
        text = f"Tokens computed although the KV-cache pool should have had them, {_BEGUN}"
        yield _counter("cloudmatrix:prompt_tokens_recomputed", text, (*LABELS, "reason"), recomputed)
        audited = {(*own, result): count for result, count in self.audits.items()}
        text = "Requested audits of the KV-cache pool; unsound: a difference was found, or a server did not respond"
        yield _counter("cloudmatrix:audits", text, (*LABELS, "result"), audited)
        if self.hints:
            hinted = {(*own, *names): count for names, count in self.hints.items()}
            text = "Actions of KV hints, by outcome"
            yield _counter("cloudmatrix:kv_hint", text, (*LABELS, "action", "outcome"), hinted)
        text = "From an answer with calls of a tool to the next request of its session [s]"
        yield from self.pauses.families("cloudmatrix:kv_pause_seconds", text, (*LABELS, "tool"), own)
        http = {(*own, method, handler, str(status)): count for (method, handler, status), count in self.http.items()}
        if http:
            names = (*LABELS, "method", "handler", "status")
            yield _counter("http_requests", "HTTP exchanges, by route; 499: the client disconnected first", names, http)
        yield from self._gauges()
        for name, attribute, text in _HISTOGRAMS:
            histogram: BucketHistogram = getattr(self, attribute)
            family = HistogramMetricFamily(name, text, labels=LABELS)
            buckets: Sequence[Any] = cumulative(histogram.bounds, histogram.counts)
            if histogram is self.ttft:
                buckets = self._traced.beside(buckets)
            family.add_metric(own, buckets, histogram.total)
            yield family

    def _gauges(self) -> Iterable[GaugeMetricFamily]:
        values = [("requests", "Requests in flight, queued ones included", self.in_flight)]
        if self.line is not None:
            values.append(("queued_requests", "Queued requests", len(self.line)))
            values.append(("queued_tokens", "Prompt tokens of queued requests", self.line.tokens))
        for name, text, value in values:
            gauge = GaugeMetricFamily(f"cloudmatrix:gateway_{name}", text, labels=LABELS)
            gauge.add_metric((self.model_name, self.engine), value)
            yield gauge


async def no_questions() -> None:
    """Do nothing; the refresh of a gateway without instances."""


def _counter(name: str, text: str, labels: Sequence[str], values: Mapping[Any, int]) -> CounterMetricFamily:
    """`values`: label values (a tuple of strings) to the count."""
    family = CounterMetricFamily(name, text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family
