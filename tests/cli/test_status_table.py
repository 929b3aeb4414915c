"""Output of `cloudmatrix status`, and its one-line messages when there is no system."""

import json

import pytest
from msgspec.structs import asdict

from serving.cli import main
from serving.cli.status_table import fetch_status, print_status, short_npus
from serving.errors import UnavailableError
from serving.gateway.api.admin.pool_summary import server_rows
from serving.values.system_tally import HostRow
from tests.cli.gateway import answering
from tests.fakes.pool_admin import two_servers

REPLICA = {
    "replica": "decode#abcdefgh",
    "npus": ["n0.npu2", "n0.npu3", "n0.npu5"],
    "hbm_used_bytes": 300 << 20,
    "hbm_capacity_bytes": 512 << 20,
    "kv_blocks_used": 7,
    "kv_blocks_total": 4184,
    "running": 3,
    "waiting": 1,
    "held": 2,
    "pulling": 4,
    "fetching": 20,
    "queued_tokens": 99,
    "pid": 1234,
    "state": "serving",
}
STATUS = {
    "model": "storyteller",
    "mode": "disaggregated",
    "npus": {"used": 3, "offered": 8},
    "gateway": {"running": 3, "queued": 5},
    "pools": [
        {"name": "prefill", "target_replicas": 1, "replicas": []},
        {"name": "decode", "target_replicas": 1, "replicas": [REPLICA]},
    ],
}


def test_an_expert_rank_has_no_blocks_and_no_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    of_group = {"group": "decode#abc", "ranks": 2, "shell_pid": 9}
    attention = REPLICA | of_group | {"replica": "decode#abc.r0", "rank": 0, "role": "attention"}
    experts = {name: None for name in REPLICA} | of_group
    experts |= {"replica": "decode#abc.r8", "rank": 8, "role": "experts", "npus": ["n0.npu6"], "pid": 77}
    experts |= {"state": "serving"}
    pools = [{"name": "decode", "target_replicas": 1, "replicas": [attention, experts]}]
    print_status({**STATUS, "pools": pools}, as_json=False)
    text = capsys.readouterr().out
    assert "decode 1/1" in text
    assert "r8" in text
    assert "77  experts" in text


def test_everything_fits_into_80_columns_or_is_raw_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_status(STATUS, as_json=True)
    assert json.loads(capsys.readouterr().out) == STATUS
    print_status(STATUS, as_json=False)
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines()) <= 80
    for part in ("3 of 8 NPUs", "5 queued", "abcdefgh", "n0: 2-3,5", "300/512", "7/4184", "1234", "none is up"):
        assert part in text
    assert text.splitlines()[-1].split()[-3:] == ["3", "27", "99"], "whatever is here and not computed waits"


def test_ranks_stand_below_their_group(capsys: pytest.CaptureFixture[str]) -> None:
    group = {"group": "decode#abcdefgh", "ranks": 2, "shell": "xyz", "shell_pid": 4321}
    ranks = [{**REPLICA, **group, "replica": f"decode#abcdefgh.r{n}", "rank": n, "pid": 1234 + n} for n in range(2)]
    ranks[1]["state"] = "dead"
    print_status({**STATUS, "pools": [{"name": "decode", "target_replicas": 1, "replicas": ranks}]}, as_json=False)
    lines = capsys.readouterr().out.splitlines()[-3:]
    assert lines[0].split() == ["decode", "0/1", "abcdefgh", "4321"]
    assert lines[1].split()[:4] == ["r0", "n0:", "2-3,5", "1234"]
    assert lines[2].split()[:2] == ["r1", "(dead)"]
    ranks[1] |= {"state": "serving", "masked_experts": 12}
    print_status({**STATUS, "pools": [{"name": "decode", "target_replicas": 1, "replicas": ranks}]}, as_json=False)
    text = capsys.readouterr().out
    assert "decode 1/1" in text
    assert "abcdefgh (12 experts masked)" in text


def test_a_pipe_loses_no_columns_of_a_large_system(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    large = {
        "hbm_used_bytes": 64 << 30,
        "hbm_capacity_bytes": 128 << 30,
        "kv_blocks_used": 123_456,
        "kv_blocks_total": 204_184,
        "queued_tokens": 654_321,
        "state": "draining",
    }
    pool = {"name": "aggregated", "target_replicas": 12, "replicas": [{**REPLICA, **large}]}
    print_status({**STATUS, "pools": [pool]}, as_json=False)
    text = capsys.readouterr().out
    for part in ("abcdefgh (draining)", "65536/131072", "123456/204184", "654321"):
        assert part in text
    assert "…" not in text


def test_several_gateways_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    print_status(STATUS, as_json=False)
    assert capsys.readouterr().out.splitlines()[1] == "gateway: 3 requests running, 5 queued"
    print_status({**STATUS, "gateways": 2}, as_json=False)
    assert capsys.readouterr().out.splitlines()[1] == "2 gateways: 3 requests running, 5 queued"


def test_several_hosts_are_rows_and_a_dead_one_says_for_how_long(capsys: pytest.CaptureFixture[str]) -> None:
    hosts = [
        asdict(HostRow("n0", "10.77.0.1", 8, 2, 1024, 192, gateways=2)),
        asdict(HostRow("n1", "10.77.0.2", 8, 0, 1024, 0, lost_s=73.6)),
    ]
    print_status({**STATUS, "hosts": hosts}, as_json=False)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[2:5] == [
        ["host", "address", "state", "NPUs", "UB", "MiB", "gateways"],
        ["n0", "10.77.0.1", "alive", "2/8", "192/1024", "2"],
        ["n1", "10.77.0.2", "dead", "74", "s", "8", "1024", "-"],
    ]
    print_status({**STATUS, "hosts": hosts[:1]}, as_json=False)
    assert "10.77.0.1" not in capsys.readouterr().out, "a single one is no news"
    full = {**hosts[0], "disk_full": "the disk of /tmp is full"}
    print_status({**STATUS, "hosts": [full]}, as_json=False)
    assert "\nn0: the disk of /tmp is full\n" in capsys.readouterr().out


def test_the_kvcache_pool_is_the_third_one(capsys: pytest.CaptureFixture[str]) -> None:
    servers = server_rows(two_servers().view())
    kvcache = {"name": "kvcache", "target_replicas": 3, "servers": servers}
    print_status({**STATUS, "kvcache": kvcache}, as_json=False)
    text = capsys.readouterr().out
    assert max(len(line) for line in text.splitlines()) <= 80
    first, second = text.splitlines()[-2:]
    assert first.split() == ["kvcache", "2/3", "a", "active", "-", "10/64", "20/128", "33"]
    assert second.split() == ["b", "active", "0.50", "-", "40/64", "20/128", "33"]
    print_status({**STATUS, "kvcache": {**kvcache, "servers": []}}, as_json=False)
    assert capsys.readouterr().out.splitlines()[-1].split() == ["kvcache", "0/3", "none", "is", "up"]


def test_npus_are_shortened_to_runs() -> None:
    assert short_npus(["n1.npu7"]) == "n1: 7"
    assert short_npus(["n0.npu1", "n0.npu0", "n0.npu3"]) == "n0: 0-1,3"
    assert short_npus(["n12.npu1", "n2.npu0", "n3.npu0"]) == "n2-n12: 3"


def test_the_key_is_sent_and_its_lack_is_explained() -> None:
    with answering(
        lambda asked: (200, STATUS) if asked.headers["Authorization"] == "Bearer s3cret" else (401, {})
    ) as url:
        assert fetch_status(url, "s3cret") == STATUS
        with pytest.raises(UnavailableError, match="give its key"):
            fetch_status(url, None)


def test_a_dead_replica_is_said_to_be_dead_and_does_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    for state in ("dead", "frozen"):
        dead = {
            **STATUS,
            "pools": [{"name": "decode", "target_replicas": 1, "replicas": [{**REPLICA, "state": state}]}],
        }
        print_status(dead, as_json=False)
        text = capsys.readouterr().out
        assert f"abcdefgh ({state})" in text
        assert "decode 0/1" in text


def test_a_board_that_does_not_answer_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    print_status({**STATUS, "board_silent_s": 3.0}, as_json=False)
    assert "scaling board" not in capsys.readouterr().out
    print_status({**STATUS, "board_silent_s": 74.2}, as_json=False)
    assert "the scaling board has not responded for 74 s: no replicas are scaled" in capsys.readouterr().out


def test_process_ids_of_a_pool_stand_alone(capsys: pytest.CaptureFixture[str]) -> None:
    dead = {**REPLICA, "pid": 99, "state": "dead"}
    pools = [{"name": "decode", "target_replicas": 2, "replicas": [REPLICA, dead]}]
    with answering(lambda _: (200, {**STATUS, "pools": pools})) as url:
        assert main(["status", "--url", url, "--pids", "decode"]) == 0
        assert capsys.readouterr().out == "1234\n"
        assert main(["status", "--url", url, "--pids", "encode"]) == 2
        assert "there is no pool encode; there are decode" in capsys.readouterr().err
