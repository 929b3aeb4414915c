"""Several gateways on one page: series of each, instances once."""

import asyncio
from collections.abc import Sequence

from prometheus_client.parser import text_string_to_metric_families

from serving.telemetry.metrics import GatewayMetrics
from serving.telemetry.shared_metrics import GatewayNumbers
from serving.telemetry.stats import MemoryServerStats
from serving.values.system_tally import SystemTally
from tests.telemetry.samples import Page, by_engine, samples, stats


class Known:
    """Like `Others`."""

    def __init__(self, *others: GatewayMetrics) -> None:
        self._others = others

    async def numbers(self) -> Sequence[GatewayNumbers]:
        return [one.numbers() for one in self._others]

    async def first(self, name: str) -> bool:
        return all(name < one.numbers().gateway for one in self._others)


def page(metrics: GatewayMetrics, *, namespaces: bool = False) -> Page:
    """A scraper's page; asserts that each family and each series is unique."""
    text = asyncio.run(metrics.render_all(namespaces=namespaces)).decode()
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(set(names)) == len(names)
    found: Page = {}
    for sample in (sample for family in families for sample in family.samples):
        key = sample.name, frozenset(sample.labels.items())
        assert key not in found, key
        found[key] = sample.value
    return found


def begin(metrics: GatewayMetrics, prompts: list[int], namespace: str = "default") -> None:
    """Start a request that is being computed."""
    timeline = metrics.request_started(prompts, 1, None, arrived=0.0, namespace=namespace)
    for index in range(len(prompts)):
        timeline.begun(index, 0.0, 0)


def two() -> tuple[GatewayMetrics, GatewayMetrics]:
    one, other = GatewayMetrics("m", engine="0", name="aaa"), GatewayMetrics("m", engine="1", name="bbb")
    one.others, other.others = Known(other), Known(one)
    begin(one, [5])
    begin(other, [7, 8], namespace="acme")
    other.http_request("GET", "/health", 200, 0.1)
    return one, other


def test_whoever_is_scraped_shows_the_series_of_all() -> None:
    one, other = two()
    assert page(one) == page(other)
    assert by_engine(page(one), "vllm:prompt_tokens_total") == {"0": 5, "1": 15}
    assert by_engine(page(one), "http_requests_total") == {"1": 1}
    assert asyncio.run(one.load()) == asyncio.run(other.load()) == 2


def test_a_gateway_alone_shows_what_it_has() -> None:
    metrics = GatewayMetrics("m")
    alone = page(metrics, namespaces=True)
    assert alone == {**samples(metrics), **{key: value for key, value in alone.items() if "namespace" in key[0]}}


def test_an_instance_is_there_once_and_as_it_told_last() -> None:
    one, other = two()
    one.publish_instance(stats("d#a", steps_total=90, told_s=9.0))
    other.publish_instance(stats("d#a", steps_total=80, told_s=8.0))
    other.publish_instance(stats("d#b", steps_total=3, told_s=1.0))
    one.publish_servers([MemoryServerStats("kv", 1.0, misses=4, told=2.0)])
    other.publish_servers([MemoryServerStats("kv", 1.0, misses=5, told=3.0)])
    for shown in (page(one), page(other)):
        assert by_engine(shown, "cloudmatrix:steps_total") == {"d#a": 90, "d#b": 3}
        assert [value for (name, _), value in shown.items() if name == "cloudmatrix:memory_server_misses_total"] == [5]


def test_tenants_of_other_gateways_are_for_administrators_only() -> None:
    one, _ = two()
    assert not [name for name, _ in page(one) if "namespace" in name]
    told = page(one, namespaces=True)
    held = {dict(labels)["namespace"]: v for (name, labels), v in told.items() if "namespace_prompt_tokens_t" in name}
    assert held == {"default": 5, "acme": 15}


def test_two_that_have_the_same_rank_do_not_share_series() -> None:
    one, _ = two()
    younger = GatewayMetrics("m", engine="0", name="ccc")
    begin(younger, [11])
    one.others, younger.others = Known(younger), Known(one)
    assert by_engine(page(one), "vllm:prompt_tokens_total") == {"0": 5, "0-ccc": 11}
    assert page(younger) == page(one)


def test_what_is_known_is_published_when_somebody_looks() -> None:
    metrics, running = GatewayMetrics("m"), [2]

    async def ask() -> None:
        running[0] += 1

    metrics.ask, metrics.refresh = ask, lambda: metrics.publish_instance(stats("d#a", running=running[0]))
    assert by_engine(page(metrics), "vllm:num_requests_running") == {"d#a": 3}, "asked first"
    metrics.others = Known()
    text = asyncio.run(metrics.render_own()).decode()
    assert 'vllm:num_requests_running{engine="d#a",model_name="m",pool="decode"} 4.0' in text


def test_pages_of_single_gateways_have_each_series_once_between_them() -> None:
    """A scraper of both gateways adds their pages up."""
    one, other = two()
    for gateway in (one, other):
        gateway.publish_instance(stats("d#a", steps_total=90))
        gateway.publish_servers([MemoryServerStats("kv", 1.0, misses=4)])
        gateway.system.publish({"decode": 1}, SystemTally(nodes=2))
    texts = [asyncio.run(gateway.render_own(namespaces=True)).decode() for gateway in (one, other)]
    pages = [
        {
            (s.name, frozenset(s.labels.items()))
            for family in text_string_to_metric_families(text)
            for s in family.samples
        }
        for text in texts
    ]
    assert not pages[0] & pages[1]
    whole = page(one, namespaces=True)
    assert pages[0] | pages[1] == whole.keys()


def test_the_system_is_on_the_page_of_all_gateways_once() -> None:
    one, other = two()
    for gateway in (one, other):
        gateway.system.publish({"decode": 3}, SystemTally(nodes=2, decisions={"decode": {"burst": 4}}))
    found = {
        name: value
        for (name, _), value in page(one).items()
        if name.startswith(("cloudmatrix:scaling", "cloudmatrix:nodes"))
    }
    assert found["cloudmatrix:scaling_target_replicas"] == 3
    assert found["cloudmatrix:scaling_decisions_total"] == 4
    assert found["cloudmatrix:nodes"] == 2
