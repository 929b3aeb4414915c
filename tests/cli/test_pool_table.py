"""`cloudmatrix pool` against a gateway's real HTTP surface over a fake pool: what it prints, and how it exits."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.cli import main
from serving.cli.status_table import clip
from serving.gateway.api.settings import ApiSettings, NamespaceKeys, ServedModel, hash_api_key
from serving.ids import ReplicaId
from serving.telemetry.stats import InstanceStats, PoolClientStats
from serving.values.pool_view import EMPTY_VIEW
from tests.fakes.kv_hints import FakeKvHints
from tests.fakes.pool_admin import two_servers
from tests.gateway.api.support import Harness, running_server, write_model_folder

SETTINGS = ApiSettings(
    admin_key_hashes=(hash_api_key("root"),), namespaces=(NamespaceKeys("acme", (hash_api_key("acme"),)),)
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    folder: Path = write_model_folder(tmp_path_factory.mktemp("model"))
    return ServedModel.from_folder(folder, names=("tiny",), max_model_len=512, created=7)


class Gateway:
    """A gateway to query, with its backend and pool."""

    def __init__(self, served: ServedModel, settings: ApiSettings | None) -> None:
        self.pool = two_servers()
        self.hints = FakeKvHints()
        self.harness = Harness(served, settings, self.pool, hints=self.hints)
        self.url = ""

    def ask(self, *arguments: str, key: str | None = None) -> int:
        """Run `cloudmatrix pool ...`. Returns: its exit code."""
        return main(["pool", *arguments, "--url", self.url, *(["--api-key", key] if key else [])])


@pytest.fixture
def gateway(served: ServedModel) -> Iterator[Gateway]:
    made = Gateway(served, None)
    with running_server(made.harness.app) as made.url:
        yield made


@pytest.fixture
def closed(served: ServedModel) -> Iterator[Gateway]:
    made = Gateway(served, SETTINGS)
    with running_server(made.harness.app) as made.url:
        yield made


def test_the_pool_in_80_columns(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    use = PoolClientStats(blocks={"dram": 1200, "ssd": 300, "absent": 1499, "lost": 1})
    gateway.harness.metrics.publish_instance(
        InstanceStats(replica=ReplicaId("prefill#a"), pool="prefill", pool_use=use)
    )
    assert gateway.ask() == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for part in ("2 memory servers", "3,000 blocks looked up", "40% found in memory", "10% on SSD", "1 lost"):
        assert part in text
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line and line[0] != " "}
    assert rows["a"][:1] + rows["a"][2:] == ["active", "10/64", "20/128", "33", "30", "5"]
    assert rows["b"][:2] + rows["b"][3:4] == ["active", "0.50", "40/64"]
    assert rows["acme"] == ["5.0", "0.0", "100", "5"]
    assert rows["umbrella"] == ["4.0", "0.0", "none", "4"]


def test_an_empty_pool_and_a_silent_server(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    gateway.pool.mute = frozenset({"kvcache-b"})
    assert gateway.ask() == 0
    assert "kvcache-b does not respond: no answer in time" in capsys.readouterr().out
    gateway.pool.pool, gateway.pool.mute = EMPTY_VIEW, frozenset()
    assert gateway.ask() == 0
    text = capsys.readouterr().out
    assert text.startswith("KV-cache pool: 0 memory servers\nnothing has been looked up yet\n")
    assert "none is up" in text


def test_json_is_the_raw_answer_and_options_are_anywhere(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert gateway.ask("--json") == 0
    body: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [server["name"] for server in body["servers"]] == ["kvcache-a", "kvcache-b"]
    assert main(["pool", "--url", gateway.url, "--json", "audit"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    assert main(["pool", "--url", "http://127.0.0.1:9", "audit", "--url", gateway.url]) == 0


def test_an_audit_that_finds_something_exits_with_1(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert gateway.ask("audit") == 0
    assert "the pool is sound" in capsys.readouterr().out
    gateway.pool.broken = {"kvcache-a": ["entry 12: wrong bytes in memory"]}
    assert gateway.ask("audit", "--repair") == 1
    text = capsys.readouterr().out
    assert "kvcache-a: 1 problem" in text
    assert "  entry 12: wrong bytes in memory" in text
    assert "NOT sound" in text
    gateway.pool.broken, gateway.pool.mute = {}, frozenset({"kvcache-b"})
    assert gateway.ask("audit") == 1
    assert "kvcache-b: not audited" in capsys.readouterr().out
    assert gateway.pool.audits == [False, True, False]


def test_forgetting_a_namespace(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert gateway.ask("forget", "acme") == 0
    assert capsys.readouterr().out == "deleted 5 entries, 5.0 MiB, of 'acme'\n"
    assert gateway.ask("forget", "no such/name") == 2
    assert "no namespace 'no such/name'" in capsys.readouterr().err
    assert gateway.pool.forgotten == ["acme"]


def test_keys_decide_and_a_tenant_is_shown_its_own_namespace(
    closed: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    assert closed.ask() == 3
    assert "give its key with --api-key" in capsys.readouterr().err
    assert closed.ask(key="acme") == 0
    text = capsys.readouterr().out
    assert "acme" in text
    assert not any(other in text for other in ("umbrella", "memory server", "looked up"))
    assert closed.ask("forget", "umbrella", key="acme") == 3
    assert "403: this API key may not delete" in capsys.readouterr().err
    assert closed.ask("audit", key="acme") == 3
    assert closed.ask("audit", key="root") == 0
    closed.pool.mute = frozenset({"kvcache-b"})
    assert closed.ask(key="acme") == 0
    assert "not every memory server responded" in capsys.readouterr().out


def test_quota_and_weight_are_changed(closed: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert closed.ask("quota", "acme", "--mib", "7", "--weight", "2", key="root") == 0
    assert capsys.readouterr().out.startswith("acme: quota 7 MiB, weight 2, until the configuration")
    assert closed.ask("quota", "acme", "--mib", "0", key="root") == 0
    assert "no limit" in capsys.readouterr().out
    assert closed.ask("quota", "acme", key="root") == 2
    assert "give 'quota_mib'" in capsys.readouterr().err
    assert closed.ask("quota", "acme", "--mib", "7", key="acme") == 3
    assert "403" in capsys.readouterr().err
    assert closed.ask(key="root") == 0
    assert "acme: changed while running, weight 2" in capsys.readouterr().out


def test_sessions(gateway: Gateway, closed: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    long = "0199a213-81c0-7800-8aa1-bbab2a035a53-with-a-tail"
    gateway.hints.held = {("default", long, ""): 3, ("default", long, "agent"): 1, ("acme", "s", ""): 2}
    assert gateway.ask("sessions") == 0
    text = capsys.readouterr().out
    assert text.startswith("default: 1 session with blocks")
    assert long[:39] + "…" in text
    assert "trunk, agent" in text
    assert "4.0" in text
    assert "retain accepted" in text
    gateway.hints.complete = False
    assert gateway.ask("sessions", "--namespace", "acme", "--json") == 0
    assert [one["session"] for one in json.loads(capsys.readouterr().out)["sessions"]] == ["s"]
    assert gateway.ask("sessions", "--namespace", "umbrella") == 0
    assert "not every memory server" in capsys.readouterr().out
    assert closed.ask("sessions", "--namespace", "umbrella", key="acme") == 3
    assert "403" in capsys.readouterr().err


def test_a_system_without_a_pool_says_so(served: ServedModel, capsys: pytest.CaptureFixture[str]) -> None:
    with running_server(Harness(served).app) as url:
        assert main(["pool", "--url", url]) == 2
    assert "runs without a KV-cache pool" in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["pool", "--help"], ["pool", "audit", "--help"], ["pool", "forget", "--help"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 0
    text = capsys.readouterr().out
    for part in ("audit", "forget", "admin_keys", "Exit code", "--repair", "NAMESPACE"):
        assert part in text


def test_long_names_keep_their_end() -> None:
    assert clip("0123456789ab-0") == "0123456789ab-0"
    assert clip("0123456789ab-10") == "…23456789ab-10"
    assert clip("short") == "short"
