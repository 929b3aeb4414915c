"""An audit while the server works: what merely changes is no fault."""

import random
import threading
import time
from pathlib import Path

from serving.ids import BlockHash
from serving.kvpool.core import messages as m
from serving.kvpool.core.entry import GrantStatus, Space
from serving.values.pool_view import ServerRecord
from tests.kvpool.raw_client import RawClient, hash_of
from tests.kvpool.server_process import MIB, running_server

WORK_S = 3.0
SPACES = (Space("a", "l"), Space("b", "l"))


def content(number: int) -> bytes:
    """The one right content of a block; sizes differ."""
    return number.to_bytes(4, "big") * (1000 + 7919 * (number % 7))


def work(record: ServerRecord, seed: int, until: float, wrong: list[BlockHash], done: list[int]) -> None:
    """Puts, gets, drops and deletes at random; every byte is looked at."""
    rng = random.Random(seed)
    with RawClient(record) as client:
        while time.monotonic() < until:
            number, space = rng.randrange(400), rng.choice(SPACES)
            action = rng.random()
            if action < 0.5:
                # A refusal is as good as a grant here, and so is a commit that a deletion overtook.
                (grant,) = client.reserve((hash_of(number), len(content(number))), space=space)
                if grant.status is GrantStatus.GRANTED:
                    client.finish(grant, content(number))
            elif action < 0.95:
                data = client.get(hash_of(number), space=space, wait_s=rng.choice((0.0, 5.0)))
                if data not in (None, content(number)):
                    wrong.append(hash_of(number))
            elif action < 0.99:
                entries = client.ask(m.List(0, 20), m.Listed).entries
                client.ask(m.Drop(tuple(one.version for one in entries[:3])), m.Committed)
            else:
                client.ask(m.Forget(space.namespace), m.Data)
            done.append(1)


def test_an_audit_of_a_busy_server_is_clean(segments: Path, tmp_path: Path) -> None:
    settings = {"capacity_bytes": 4 * MIB, "slab_bytes": MIB // 2, "ssd_folder": tmp_path, "ssd_bytes": 6 * MIB}
    with (
        running_server(segments, **settings, write_through=True) as server,
        RawClient(server.record) as auditor,
    ):
        wrong: list[BlockHash] = []
        done: list[int] = []
        until = time.monotonic() + WORK_S
        workers = [threading.Thread(target=work, args=(server.record, n, until, wrong, done)) for n in range(3)]
        for worker in workers:
            worker.start()
        audits = 0
        while time.monotonic() < until:
            assert auditor.audit()["problems"] == []
            audits += 1
        for worker in workers:
            worker.join()
        assert wrong == []
        assert audits > 2
        assert len(done) > 50
        proof = auditor.audit()
        assert proof["problems"] == []
        assert proof["skipped"] == 0
        counters = auditor.stats()["counters"]
        assert not {"internal_errors", "damaged_dram", "damaged_ssd"} & counters.keys()


def test_a_folder_that_was_wiped_is_noticed_and_repaired(segments: Path, tmp_path: Path) -> None:
    settings = {"capacity_bytes": 8 * MIB, "ssd_folder": tmp_path, "ssd_bytes": 16 * MIB, "write_through": True}
    with running_server(segments, **settings) as server, RawClient(server.record) as client:
        for number in range(150):
            client.put(hash_of(number), content(number))
        for _ in range(500):
            if client.stats()["ledger"]["ssd_used_bytes"] and not sum(client.stats()["ssd_queue"].values()):
                break
            time.sleep(0.01)
        for path in tmp_path.rglob("*.context"):
            path.unlink()
        proof = client.audit()
        assert proof["problem_count"] >= 100
        assert len(proof["problems"]) == 100, "a list for people, not for printers"
        assert client.audit(repair=True)["repaired"] >= 100
        assert client.audit()["problems"] == []
        assert client.put(hash_of(0), content(0)) is GrantStatus.GRANTED
        assert client.get(hash_of(0)) == content(0)
