"""A deployment in stages: the replicas of each stage, the kept targets, and the stop at another's turn."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serving.cluster.gcs_store import GcsStore
from serving.config.kvcache import KvCacheConfig
from serving.config.model import ModelConfig
from serving.config.serve import ServeConfig
from serving.launch.deploying import DeploymentTurn, StartError
from serving.launch.deployment_lease import DeploymentLease
from serving.launch.rollout import Order, Rollout, configuration_digest, read_record
from serving.values.system_tally import DeploymentNotice
from tests.cluster.gcs_fake import FakeGcs

FIRST = ServeConfig(ModelConfig(Path("somewhere"), version="w1"), kvcache=KvCacheConfig(replicas=2))
SECOND = replace(FIRST, decode=replace(FIRST.decode, max_sequences=7))


class Case:
    """A control store, Serve's targets, and a scaling board that may have others."""

    def __init__(self) -> None:
        gcs = FakeGcs()
        self.store = GcsStore(lambda: gcs)
        self.targets: dict[str, int] = {}
        self.board: dict[str, int] = {}
        self.told: list[tuple[str, Mapping[str, int]]] = []

    def details(self, _: str) -> dict[str, Any]:
        options: dict[str, Any] = {"ray_actor_options": {}}
        return {
            name: {"target_num_replicas": target, "deployment_config": options} for name, target in self.targets.items()
        }

    def rollout(self, config: ServeConfig) -> Rollout:
        return Rollout(config, "app", self.store, self.details, lambda *_: False)

    def begin(self, stage: str, wanted: Mapping[str, int]) -> Mapping[str, int]:
        self.told.append((stage, wanted))
        return self.board

    def deploy(self, config: ServeConfig) -> list[dict[str, Order]]:
        stages = []
        for orders in self.rollout(config).stages(self.begin):
            self.targets = {name: order.replicas for name, order in orders.items()}
            stages.append(orders)
        return stages


@pytest.fixture
def case() -> Case:
    return Case()


def test_an_upgrade_keeps_targets_that_were_set_since_even_between_its_stages(case: Case) -> None:
    case.deploy(FIRST)
    assert case.told == [("kvcache, prefill, decode, gateway at once", case.targets)]
    case.targets["kvcache"] = 3
    both = replace(SECOND, gateway=replace(SECOND.gateway, routing="locality"))
    stages = case.rollout(both).stages(case.begin)
    assert next(stages)["kvcache"].replicas == 3
    case.targets["kvcache"] = 2  # a move of the board's own, half of which was done before
    case.board = {"decode": 5}
    orders = next(stages)
    assert (orders["kvcache"].replicas, orders["decode"].replicas) == (2, 5)
    assert case.told[1:] == [("decode, 1 of 2", {}), ("gateway, 2 of 2", {})]


def test_a_changed_number_of_the_file_is_asked_for_once(case: Case) -> None:
    case.deploy(FIRST)
    more = replace(SECOND, decode=replace(SECOND.decode, replicas=2))
    (orders,) = case.deploy(more)
    assert (case.told[-1], orders["decode"].replicas) == (("decode, 1 of 1", {"decode": 2}), 2)
    case.targets["decode"] = 4
    case.deploy(replace(more, slo=replace(more.slo, ttft_s=9.0)))
    assert (case.told[-1], case.targets["decode"]) == (("no replica changes", {}), 4)


def test_a_stage_whose_turn_has_passed_writes_nothing(case: Case) -> None:
    case.deploy(FIRST)
    notices: list[DeploymentNotice] = []

    def note(notice: DeploymentNotice, _: float) -> None:
        notices.append(notice)

    def nothing(_: object) -> None:
        pass

    with DeploymentLease(case.store, "deploys", nothing) as lease:
        turn = DeploymentTurn(lease, "abc", note)
        for key in case.store.keys("deployments/"):
            case.store.delete(key)
        stages = case.rollout(SECOND).stages(lambda stage, wanted: turn.begin(stage, wanted, runs=True))
        with pytest.raises(StartError, match="another deployment took over before decode, 1 of 1"):
            next(stages)
    record = read_record(case.store)
    assert record is not None
    assert record.values["decode.max_sequences"] == FIRST.decode.max_sequences
    assert notices == []


def test_the_board_is_told_of_stages_and_how_it_ended(case: Case) -> None:
    notices: list[DeploymentNotice] = []

    def note(notice: DeploymentNotice, _: float) -> None:
        notices.append(notice)

    with DeploymentLease(case.store, "deploys", print) as lease:
        turn = DeploymentTurn(lease, "abc", note)

        def one(error: BaseException | None = None) -> None:
            with turn.until_over():
                turn.begin("decode, 1 of 1", {"decode": 2}, runs=True)
                if error is not None:
                    raise error

        one()
        with pytest.raises(RuntimeError):
            one(RuntimeError("no"))
    assert [(one.stage, one.targets, one.over) for one in notices] == [
        ("decode, 1 of 1", {"decode": 2}, False),
        ("done", {}, True),
        ("decode, 1 of 1", {"decode": 2}, False),
        ("failed at decode, 1 of 1 (RuntimeError)", {}, True),
    ]
    assert {(one.author, one.configuration) for one in notices} == {(lease.author, "abc")}


def test_a_digest_tells_configurations_apart() -> None:
    assert configuration_digest(FIRST) == configuration_digest(replace(FIRST))
    assert configuration_digest(FIRST) != configuration_digest(SECOND)
