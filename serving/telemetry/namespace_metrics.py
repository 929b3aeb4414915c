"""Metrics that name tenants, separate from all others because `/metrics` needs no API key.

Tenant names and their usage are confidential: a response contains these series only if the scraper has administrator
rights (an admin key, or a server without keys). Their number is bounded because namespaces come from the configuration,
never from clients.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_LABELS = ("model_name", "engine", "namespace")
_BEGUN = "of a tenant's prompts that an instance started to compute, counted once per request for any n"
_HOLDS = ("server", "namespace", "tier")


class NamespaceBoard(Collector):
    """Use of this gateway by each namespace, and its holdings in the pool."""

    def __init__(self, model_name: str, engine: str) -> None:
        self._own = (model_name, engine)
        self.prompt_tokens: Counter[str] = Counter()
        self.cached_tokens: Counter[str] = Counter()
        self._holdings: Mapping[str, Mapping[str, Mapping[str, int]]] = {}

    def expect(self, namespaces: Iterable[str]) -> None:
        """Export series of these namespaces from the start."""
        for counts in (self.prompt_tokens, self.cached_tokens):
            counts.update(dict.fromkeys(namespaces, 0))

    def publish_servers(self, holdings: Mapping[str, Mapping[str, Mapping[str, int]]]) -> None:
        """Replace the holdings of namespaces on each memory server, by tier [bytes]."""
        self._holdings = holdings

    def collect(self) -> Iterable[Metric]:
        """All metrics of tenants, for the registry."""
        for name, text, counts in (
            ("cloudmatrix:namespace_prompt_tokens", f"Tokens {_BEGUN}", self.prompt_tokens),
            (
                "cloudmatrix:namespace_prompt_tokens_cached",
                f"Cached tokens, not computed again, {_BEGUN}",
                self.cached_tokens,
            ),
        ):
            counter = CounterMetricFamily(name, text, labels=_LABELS)
            for namespace, count in sorted(counts.items()):
                counter.add_metric((*self._own, namespace), count)
            if counter.samples:
                yield counter
        held = GaugeMetricFamily("cloudmatrix:namespace_pool_bytes", "Held in the KV-cache pool [bytes]", labels=_HOLDS)
        for server, namespaces in sorted(self._holdings.items()):
            for namespace, tiers in sorted(namespaces.items()):
                for tier, nbytes in tiers.items():
                    held.add_metric((server, namespace, tier), nbytes)
        if held.samples:
            yield held
