"""Instances join or leave 600 times under steady load: no request is lost, no token is wrong, no state is left."""

from dataclasses import replace
from random import Random

import pytest

from serving.ids import ReplicaId
from serving.instance.core.settings import EngineRole, EngineSettings
from tests.instance.cluster import Cluster, Record
from tests.instance.fake_instance import FakeInstance
from tests.instance.random_requests import SMALL, assert_exact, random_spec, stems

EVENTS = 150
"""In each of four runs."""
MODES = {
    "disaggregated": (EngineRole.PREFILL, EngineRole.DECODE),
    "aggregated": (EngineRole.AGGREGATED,),
}


class Fleet:
    """A cluster whose pools change their size all the time."""

    def __init__(self, roles: tuple[EngineRole, ...], base: EngineSettings, seed: int) -> None:
        self.rng = Random(seed)
        self.settings = {role: replace(base, role=role) for role in roles}
        self.cluster = Cluster({}, num_blocks=48, max_attempts=3)
        self.joined = self.left = self.grown = 0
        self.stems = stems(self.rng)
        self.records: list[Record] = []
        for role in roles:
            self.join(role)

    def staying(self, role: EngineRole) -> list[FakeInstance]:
        instances = self.cluster.instances.values()
        return [i for i in instances if i.engine.settings.role is role and not i.engine.snapshot(0.0).draining]

    def join(self, role: EngineRole) -> None:
        self.joined += 1
        self.cluster.join(f"{role.value}#{self.joined}", self.settings[role])

    def scale(self) -> None:
        """One event: an instance joins, or leaves; sometimes the last one of a role."""
        role = self.rng.choice(list(self.settings))
        staying = self.staying(role)
        if len(staying) >= 4 or (staying and self.rng.random() < 0.5 and (len(staying) > 1 or self.rng.random() < 0.2)):
            instance = self.rng.choice(staying)
            instance.engine.drain()
            if self.rng.random() < 0.8:
                instance.engine.move_out(self.cluster.now)
            self.cluster.carry_news()
        else:
            self.join(role)

    def go(self) -> None:
        """Some load, some steps; draining instances without work end."""
        self.records.append(
            self.cluster.submit(random_spec(self.rng, f"r/{len(self.records)}", self.stems, logprobs=0))
        )
        self.cluster.run(self.rng.randrange(1, 4))
        if self.rng.random() < 0.2:
            self.cluster.decode_at_source()
        for replica, instance in list(self.cluster.instances.items()):
            snapshot = instance.engine.snapshot(0.0)
            if not snapshot.draining:
                continue
            if instance.engine.idle() and not instance.busy and not snapshot.storing_blocks:
                self.cluster.leave(ReplicaId(replica))
                self.left += 1
            elif self.rng.random() < 0.1:
                instance.engine.move_out(self.cluster.now)
                self.cluster.carry_news()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("drafts", [0, 2])
def test_nothing_is_lost(mode: str, drafts: int) -> None:
    base = replace(SMALL, max_waiting=40, draft_tokens=drafts, speculation=drafts > 0, pool=True, max_store_blocks=4)
    fleet = Fleet(MODES[mode], base, seed=drafts)
    cluster = fleet.cluster
    for number in range(EVENTS):
        fleet.scale()
        fleet.go()
        if number % 50 == 0:
            cluster.check()
    for role in fleet.settings:
        fleet.join(role)
    while not all(record.journal.done for record in fleet.records):
        cluster.decode_at_source()
        cluster.run_until_idle()
    for record in fleet.records:
        assert_exact(record)
        chosen = tuple(entry.token for deliver in record.delivered for entry in deliver.logprobs)
        assert chosen == record.output
        assert record.journal.attempts.total == 0, "to leave is no failure"
    cluster.assert_empty()
    assert fleet.left > 0.3 * EVENTS
    assert cluster.at_source > 2
