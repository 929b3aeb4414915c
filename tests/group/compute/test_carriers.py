"""Connections between ranks of different hosts: tokens over them, and what they refuse. Hosts are threads here."""

import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal

import msgspec
import pytest
from msgspec.structs import replace

from hardware.ub.exchange_layout import EPOCH_OFFSET, WindowShape
from serving.config.experts import ExpertsConfig
from serving.errors import ConfigError
from serving.group.compute.carrier import CARRIER_CHANNEL, CarrierGreeting, Carriers
from serving.ids import SequenceId
from serving.model.native.library import load
from serving.model.native.rank_group import format_window, window_bytes
from serving.sockets.opening import open_proved
from serving.sockets.proof import framed
from serving.sockets.secrets import ClusterSecrets
from serving.sockets.tls import tls_ends
from serving.values.group import RankOffer
from serving.values.sequence import SamplingParams, SequenceSpec
from tests.group.rank_threads import RankThreads, prompts, window_memory
from tests.group.split_group import FIRST_EXPERT, Setting, SplitGroup, specs_of
from tests.instance.native_pair import native_or_skip
from tests.model.int8_checkpoint import quantised_checkpoint
from tests.model.random_checkpoint import write_random_checkpoint
from tests.sockets.certificates import Authority

SHAPE = WindowShape(2, max_rows=4, top_k=2, row_bytes=64, result_bytes=64)
SECRETS = ClusterSecrets(("a secret",))
LOST_OFFSET = EPOCH_OFFSET + 16
"""Of the ranks that count as lost, in a window."""
PATIENT_S = 60.0
"""However slow this machine is."""


@pytest.fixture(autouse=True)
def _native() -> None:
    native_or_skip()


@dataclass
class TwoHosts:
    """Carriers of ranks by host. `hosts`: of each rank. `secrets`: of each rank; default: the same."""

    hosts: Sequence[int]
    secrets: Sequence[ClusterSecrets] = ()
    connect_s: float = 20.0
    carriers: dict[int, Carriers] = field(default_factory=dict)
    offers: dict[int, RankOffer] = field(default_factory=dict)

    def listen(self, own: list[memoryview], shape: WindowShape) -> None:
        """Make the carriers."""
        for rank in range(len(self.hosts)):
            self.start(rank, own[rank], shape)

    def start(self, rank: int, own: memoryview, shape: WindowShape, pid: int = 7) -> None:
        """Make those of one process."""
        node, secrets = f"n{self.hosts[rank]}", self.secrets[rank] if self.secrets else SECRETS
        self.carriers[rank] = made = Carriers(own, shape, (rank, node, pid), secrets, self.connect_s, PATIENT_S)
        address, rows = made.start("127.0.0.1"), shape.max_rows
        self.offers[rank] = RankOffer(rank, pid, "", "", node=node, carrier=address, rows=rows)

    def seen(self, rank: int, own: list[memoryview], shape: WindowShape) -> list[memoryview]:
        """Windows as a rank sees them."""
        if not self.carriers:
            self.listen(own, shape)
        return [
            window if self.hosts[peer] == self.hosts[rank] else self.carriers[rank].meet(self.offers[peer])
            for peer, window in enumerate(own)
        ]

    def close(self) -> None:
        """End all."""
        for one in self.carriers.values():
            one.close()


def windows() -> list[memoryview]:
    library = load()
    assert library is not None
    made = [window_memory(window_bytes(SHAPE)) for _ in range(2)]
    for rank, memory in enumerate(made):
        format_window(library, memory, SHAPE, rank, 0b11)
    return made


@pytest.fixture
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[TwoHosts, list[memoryview]]]:
    made, own = TwoHosts((0, 1), **getattr(request, "param", {})), windows()
    made.listen(own, SHAPE)
    yield made, own
    made.close()


def lost_within(carriers: Carriers, limit_s: float = 10.0) -> str:
    """Why a peer is lost, after it is."""
    end = time.monotonic() + limit_s
    while not carriers.lost():
        assert time.monotonic() < end, "nobody is lost"
        time.sleep(0.005)
    return next(iter(carriers.lost().values()))


def reports(own: memoryview, lost: int, limit_s: float = 10.0) -> bool:
    """Whether a rank's window names these lost ranks in time, a bit for each: the reason is known a moment before."""
    end = time.monotonic() + limit_s
    while own[LOST_OFFSET] != lost and time.monotonic() < end:
        time.sleep(0.005)
    return own[LOST_OFFSET] == lost


def requests(rank: int) -> list[SequenceSpec]:
    sampling, chosen = SamplingParams(max_tokens=10, temperature=0.0), prompts(4, Random(rank))
    return [SequenceSpec(SequenceId(f"{rank}-{i}"), tuple(prompt), sampling) for i, prompt in enumerate(chosen)]


@pytest.mark.parametrize(
    ("kind", "hosts"), [("float32", (0, 1)), ("bfloat16", (0, 0, 1)), ("int8", (0, 1)), ("float32", (0, 1, 0, 1))]
)
def test_tokens_over_two_hosts(kind: str, hosts: Sequence[int], tmp_path: Path) -> None:
    dtype: Literal["float32", "bfloat16"] = "float32" if kind == "float32" else "bfloat16"
    far = TwoHosts(hosts)
    quantised = kind == "int8"
    folder = (
        quantised_checkpoint(tmp_path, dtype=dtype) if quantised else write_random_checkpoint(tmp_path, dtype=dtype)
    )
    group = RankThreads(folder, dtype, len(hosts), seed=3, seen=far.seen)
    work = [requests(rank) for rank in range(len(hosts))]
    try:
        wanted = group.alone([spec for specs in work for spec in specs])
        assert {name: answer for answers in group.together(work) for name, answer in answers.items()} == wanted
        assert [one.lost() for one in far.carriers.values()] == [{}] * len(hosts)
        assert far.carriers[0].sent_bytes > 10_000
    finally:
        far.close()


@pytest.mark.parametrize(
    ("experts", "far", "shared"),
    [
        pytest.param(1, (1,), "attention", id="2:1"),
        pytest.param(2, (1, FIRST_EXPERT), "attention", id="2:2"),
        pytest.param(2, (1, FIRST_EXPERT), "experts", id="2:2-shared"),
    ],
)
def test_attention_ranks_and_expert_ranks_over_two_hosts(
    experts: int, far: Sequence[int], shared: Literal["attention", "experts"], tmp_path: Path
) -> None:
    """Also after a far attention rank was replaced within the epoch."""
    config = ExpertsConfig(policy="none", micro_batches="2", deadline_s=PATIENT_S, across_nodes=True, shared=shared)
    setting = Setting(write_random_checkpoint(tmp_path, dtype="bfloat16"), 2, experts, config=config, far=far)
    work = {rank: specs_of(rank, "plain") for rank in (0, 1)}
    wanted = setting.alone([spec for specs in work.values() for spec in specs])
    with (
        tempfile.TemporaryDirectory(prefix="cloudmatrix-test-", dir="/dev/shm") as shm,
        SplitGroup(setting, Path(shm)) as group,
    ):
        assert group.run(work) == wanted
        group.leave(1)
        group.join(1)
        assert group.run(work) == wanted
        assert {rank.raised for rank in group.members} == {1}


def test_a_closed_end_is_the_loss_of_its_rank(pair: tuple[TwoHosts, list[memoryview]]) -> None:
    far, own = pair
    for rank in (0, 1):
        far.carriers[rank].meet(far.offers[1 - rank])
    time.sleep(0.1)
    assert far.carriers[0].lost() == {}
    far.carriers[1].close()
    assert lost_within(far.carriers[0]) == "the connection was closed"
    assert reports(own[0], 0b10)
    far.carriers[0].part(1)
    assert far.carriers[0].lost() == {}  # it is no member any more


@pytest.mark.parametrize("pair", [{"secrets": (SECRETS, ClusterSecrets(("another",)))}], indirect=True)
def test_another_secret_is_refused(pair: tuple[TwoHosts, list[memoryview]]) -> None:
    far, own = pair
    far.carriers[1].meet(far.offers[0])
    assert "wrong secret" in lost_within(far.carriers[1])
    assert reports(own[1], 0b01)


@pytest.mark.parametrize("pair", [{"connect_s": 0.1}], indirect=True)
def test_who_is_not_met_is_refused_and_who_does_not_come_is_lost(pair: tuple[TwoHosts, list[memoryview]]) -> None:
    far, _ = pair
    far.carriers[0].meet(far.offers[1])
    assert lost_within(far.carriers[0]) == "it has not connected within 0.1 s"
    far.carriers[0].part(1)
    far.carriers[1].meet(far.offers[0])
    assert lost_within(far.carriers[1]).startswith("no connection to ('127.0.0.1', ")


@pytest.mark.parametrize("pair", [{"connect_s": 0.2}], indirect=True)
@pytest.mark.parametrize(
    "greeting", [b"", b"\x93", msgspec.msgpack.encode(CarrierGreeting((1, "n1", 8), (0, "n0", 7), (2, 2, 64, 64)))]
)
def test_a_stranger_with_the_secret_is_refused(pair: tuple[TwoHosts, list[memoryview]], greeting: bytes) -> None:
    """Bytes that are no greeting, and another process of the rank."""
    far, _ = pair
    far.carriers[0].meet(far.offers[1])
    with open_proved(far.offers[0].carrier, CARRIER_CHANNEL, "rank", SECRETS, 5.0) as sock:
        sock.sendall(framed(greeting))
        sock.settimeout(5.0)
        assert sock.recv(1) == b""


def test_a_lost_rank_comes_back_as_another_process(pair: tuple[TwoHosts, list[memoryview]]) -> None:
    far, own = pair
    for rank in (0, 1):
        far.carriers[rank].meet(far.offers[1 - rank])
    far.carriers[1].close()
    lost_within(far.carriers[0])
    far.start(1, own[1], SHAPE, pid=8)
    for rank in (0, 1):
        far.carriers[rank].meet(far.offers[1 - rank])
    time.sleep(0.1)
    assert [far.carriers[rank].lost() for rank in (0, 1)] == [{}, {}]


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """Turns on TLS."""
    authority = Authority(tmp_path / "tls")
    for name, value in authority.issue("127.0.0.1").items():
        monkeypatch.setenv(name, value)
    return authority


@pytest.mark.usefixtures("tls")
def test_tokens_over_tls(tmp_path: Path) -> None:
    test_tokens_over_two_hosts("bfloat16", (0, 1), tmp_path)


@pytest.mark.usefixtures("tls")
def test_a_closed_end_is_the_loss_of_its_rank_over_tls(pair: tuple[TwoHosts, list[memoryview]]) -> None:
    far, own = pair
    for rank in (0, 1):
        far.carriers[rank].meet(far.offers[1 - rank])
    end = time.monotonic() + PATIENT_S
    while not far.carriers[0].sent_bytes:
        assert time.monotonic() < end, "there is no connection"
        time.sleep(0.005)
    far.carriers[1].close()
    assert lost_within(far.carriers[0])  # the relay closes its end, in any order
    assert reports(own[0], 0b10)


@pytest.mark.usefixtures("tls")
def test_a_certificate_of_another_authority_is_refused(
    pair: tuple[TwoHosts, list[memoryview]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    far, _ = pair
    with monkeypatch.context() as elsewhere:
        for name, value in Authority(tmp_path / "another", "another").issue("127.0.0.1").items():
            elsewhere.setenv(name, value)
        strangers = tls_ends()
    assert strangers is not None
    strangers.client.load_verify_locations(tmp_path / "tls" / "ca.pem")
    with strangers.client.wrap_socket(socket.create_connection(far.offers[0].carrier, 5.0)) as sock:
        with pytest.raises(OSError, match="unknown ca"):
            sock.recv(1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        far.carriers[1].meet(replace(far.offers[0], carrier=listener.getsockname()))
        with pytest.raises(OSError, match="unknown ca"):
            strangers.server.wrap_socket(listener.accept()[0], server_side=True).recv(1)
    assert ": certificate verify failed" in lost_within(far.carriers[1])
    far.carriers[0].close()  # and with it the thread that writes this
    assert "refuses a connection of a rank: no TLS: certificate verify failed" in caplog.text


def test_tls_without_its_files_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USE_TLS", "1")
    carriers = Carriers(windows()[0], SHAPE, (0, "n0", 7), SECRETS, 1.0)
    with pytest.raises(ConfigError, match="RAY_USE_TLS is set, but not"):
        carriers.start("127.0.0.1")
