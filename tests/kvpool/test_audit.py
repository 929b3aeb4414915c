"""An audit while the server works: normal changes are no faults."""

import random
import threading
from pathlib import Path

from serving.ids import BlockHash
from serving.kvpool.core import messages as m
from serving.kvpool.core.entry import GrantStatus, Space
from serving.values.pool_view import ServerRecord
from tests.kvpool.raw_client import RawClient, hash_of
from tests.kvpool.server_process import MIB
from tests.kvpool.ssd_case import served_apart, stored_files
from tests.kvpool.waits import wait_for

SPACES = (Space("a", "l"), Space("b", "l"))


def content(number: int) -> bytes:
    """The correct content of a block; sizes differ."""
    return number.to_bytes(4, "big") * (1000 + 7919 * (number % 7))


def work(record: ServerRecord, seed: int, stop: threading.Event, wrong: list[BlockHash], done: list[int]) -> None:
    """Put, get, drop and delete at random; asserts every byte."""
    rng = random.Random(seed)
    with RawClient(record) as client:
        while not stop.is_set():
            number, space = rng.randrange(400), rng.choice(SPACES)
            action = rng.random()
            if action < 0.5:
                # A refusal is as good as a grant for this test, and so is a commit overtaken by a deletion.
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
    sizes = {"capacity_bytes": 4 * MIB, "slab_bytes": MIB // 2, "ssd_bytes": 6 * MIB, "write_through": True}
    with served_apart(segments, tmp_path, **sizes) as (server, auditor):
        wrong: list[BlockHash] = []
        done: list[int] = []
        stop = threading.Event()
        workers = [threading.Thread(target=work, args=(server.record, n, stop, wrong, done)) for n in range(3)]
        for worker in workers:
            worker.start()
        audits = 0
        while audits < 8 or len(done) < 1500:
            assert auditor.audit()["problems"] == []
            audits += 1
        stop.set()
        for worker in workers:
            worker.join()
        assert wrong == []
        proof = auditor.audit()
        assert proof["problems"] == []
        assert proof["skipped"] == 0
        counters = auditor.stats()["counters"]
        assert not {"internal_errors", "damaged_dram", "damaged_ssd"} & counters.keys()


def test_a_folder_that_was_wiped_is_noticed_and_repaired(segments: Path, tmp_path: Path) -> None:
    with served_apart(segments, tmp_path, write_through=True) as (_, client):
        for number in range(150):
            client.put(hash_of(number), content(number))

        def written() -> bool:
            return client.stats()["ledger"]["ssd_used_bytes"] and not sum(client.stats()["ssd_queue"].values())

        wait_for(written, "all is on disk")
        for path in stored_files(tmp_path):
            path.unlink()
        proof = client.audit()
        assert proof["problem_count"] >= 100
        assert len(proof["problems"]) == 100, "a list for people, not for printers"
        assert client.audit(repair=True)["repaired"] >= 100
        assert client.audit()["problems"] == []
        assert client.put(hash_of(0), content(0)) is GrantStatus.GRANTED
        assert client.get(hash_of(0)) == content(0)
