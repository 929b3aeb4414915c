"""Fault schedules: rates, streams, files, recovery."""

import math
from collections import Counter
from itertools import pairwise

import pytest

from hardware.errors import SpecError
from hardware.faults import (
    DURATIONS,
    FACTORS,
    NO_FAULTS,
    RATES,
    STRENGTHS,
    TARGETS,
    DieRole,
    Fault,
    FaultKind,
    FaultRates,
    FaultUnits,
    Recovery,
    fault_schedule,
    faults_from,
    rates_from,
    recovery_figure,
    recovery_time,
)
from hardware.spec.catalog import CLOUDMATRIX384
from hardware.topology import Topology
from hardware.units import Seconds

UNITS = FaultUnits(Topology(CLOUDMATRIX384), 2, 32, {"prefill": 6, "decode": 1})
HOUR = 3600.0
FAST = FaultRates(launch_jitter=1e-4).scaled(1000)


def fault(kind: FaultKind, target: str, **changes: float) -> Fault:
    """A fault with the kind's usual numbers."""
    values = {"at_s": 1.0, "duration_s": 2.0, "factor": STRENGTHS[kind].value} | changes
    return Fault(Seconds(values["at_s"]), kind, target, Seconds(values["duration_s"]), values["factor"])


def of_kind(faults: tuple[Fault, ...], kind: FaultKind) -> list[Fault]:
    return [fault for fault in faults if fault.kind is kind]


def test_every_kind_is_described_everywhere_and_has_its_units() -> None:
    for table in (RATES, DURATIONS, STRENGTHS, TARGETS, FACTORS):
        assert set(table) == set(FaultKind)
    for kind in FaultKind:
        assert RATES[kind].source
        assert FACTORS[kind].allows(STRENGTHS[kind].value)
        assert FaultRates().of(kind) == RATES[kind].value
        names = UNITS.names(kind)
        assert names
        assert len(set(names)) == len(names)
        for name in (names[0], names[-1]):
            UNITS.require(fault(kind, name))
    counts = {kind: len(UNITS.names(kind)) for kind in FaultKind}
    assert counts[FaultKind.DIE] == counts[FaultKind.RDMA_LINK] == 768
    assert counts[FaultKind.NPU] == 384
    assert counts[FaultKind.NODE] == counts[FaultKind.VPC_CARD] == 48
    assert (counts[FaultKind.UB_SUBPLANE], counts[FaultKind.NETWORK_GLITCH]) == (7, 1)
    assert (counts[FaultKind.GATEWAY], counts[FaultKind.MEMORY_SERVER]) == (2, 32)
    two = FaultUnits(Topology(CLOUDMATRIX384, nodes=96))
    assert two.names(FaultKind.UB_SUBPLANE)[-1] == "sn1.subplane6"
    with pytest.raises(SpecError, match="-1 gateways"):
        FaultUnits(Topology(CLOUDMATRIX384), gateways=-1)


def test_default_rates_add_up_to_no_more_than_the_published_one() -> None:
    """One failure per 7.9 h on 1,024 accelerators, of which 67 % are of the counted kinds."""
    npus = FaultUnits(Topology(CLOUDMATRIX384, nodes=128))
    kinds = (FaultKind.DIE, FaultKind.NPU, FaultKind.HBM, FaultKind.RDMA_LINK)
    per_hour = sum(RATES[kind].value * len(npus.names(kind)) for kind in kinds)
    assert per_hour == pytest.approx(0.671 / 7.9)
    nodes_a_month = RATES[FaultKind.NODE].value * 730
    assert 0.02 <= nodes_a_month <= 0.05


def test_a_schedule_has_about_as_many_faults_as_the_rates_say() -> None:
    faults = fault_schedule(UNITS, FAST, 2 * HOUR, seed=4)
    counts = Counter(fault.kind for fault in faults)
    for kind in (FaultKind.RDMA_LINK, FaultKind.HBM, FaultKind.STRAGGLER, FaultKind.LAUNCH_JITTER):
        expected = FAST.of(kind) * len(UNITS.names(kind)) * 2
        assert counts[kind] == pytest.approx(expected, abs=4 * expected**0.5 + 1)
    assert all(0 <= fault.at_s < 2 * HOUR for fault in faults)
    assert [fault.order for fault in faults] == sorted(fault.order for fault in faults)
    stragglers = of_kind(faults, FaultKind.STRAGGLER)
    mean_s = sum(fault.duration_s for fault in stragglers) / len(stragglers)
    assert mean_s == pytest.approx(600, rel=0.3)
    assert {fault.duration_s for fault in of_kind(faults, FaultKind.NODE)} <= {4 * HOUR}


def test_the_same_seed_gives_the_same_faults_and_a_longer_run_more() -> None:
    assert fault_schedule(UNITS, FAST, HOUR, 1) == fault_schedule(UNITS, FAST, HOUR, 1)
    assert fault_schedule(UNITS, FAST, HOUR, 1) != fault_schedule(UNITS, FAST, HOUR, 2)
    short, long = fault_schedule(UNITS, FAST, HOUR, 1), fault_schedule(UNITS, FAST, 3 * HOUR, 1)
    assert long[: len(short)] == short
    assert len(long) > len(short)


def test_one_rate_moves_no_other_kind_and_a_higher_one_brings_the_same_faults_earlier() -> None:
    before = fault_schedule(UNITS, FAST, HOUR, 1)
    after = fault_schedule(UNITS, FaultRates(launch_jitter=1e-4, die=0.0, gateway=1.0).scaled(1000), HOUR, 1)
    assert of_kind(after, FaultKind.DIE) == []
    assert len(of_kind(after, FaultKind.GATEWAY)) > len(of_kind(before, FaultKind.GATEWAY))
    for kind in set(FaultKind) - {FaultKind.DIE, FaultKind.GATEWAY}:
        assert of_kind(before, kind) == of_kind(after, kind)
    slow = of_kind(fault_schedule(UNITS, FAST, HOUR, 1), FaultKind.HBM)
    quick = of_kind(fault_schedule(UNITS, FAST.scaled(2), HOUR, 1), FaultKind.HBM)
    assert [fault.target for fault in slow] == [fault.target for fault in quick][: len(slow)]
    assert [fault.at_s / 2 for fault in slow] == pytest.approx([fault.at_s for fault in quick][: len(slow)])


def test_a_unit_that_is_down_is_not_hit_and_without_rates_nothing_breaks() -> None:
    rates = FaultRates(gateway=100.0)
    faults = of_kind(fault_schedule(UNITS, rates, 10 * HOUR, 1), FaultKind.GATEWAY)
    for name in ("gateway0", "gateway1"):
        hits = [fault for fault in faults if fault.target == name]
        assert len(hits) > 20
        assert all(later.at_s >= earlier.until_s for earlier, later in pairwise(hits))
    assert fault_schedule(UNITS, FaultRates().scaled(0), HOUR, 1) == ()
    assert fault_schedule(UNITS, FAST, 0, 1) == ()
    bare = FaultUnits(Topology(CLOUDMATRIX384), gateways=0, memory_servers=0)
    assert not {FaultKind.GATEWAY, FaultKind.MEMORY_SERVER} & {
        fault.kind for fault in fault_schedule(bare, FAST, HOUR, 1)
    }


@pytest.mark.parametrize("bad", [-1.0, math.inf, math.nan])
def test_impossible_rates_and_durations_are_refused(bad: float) -> None:
    with pytest.raises(SpecError, match="rate of die faults"):
        FaultRates(die=bad)
    with pytest.raises(SpecError, match="fault rates times"):
        FaultRates().scaled(bad)
    with pytest.raises(SpecError, match="fault schedule of"):
        fault_schedule(UNITS, FAST, bad, 1)


def test_a_fault_knows_its_end_and_the_numbers_of_its_target() -> None:
    assert fault(FaultKind.DIE, "n3.npu5.die1").target_numbers == (3, 5, 1)
    assert fault(FaultKind.UB_SUBPLANE, "sn0.subplane4").target_numbers == (0, 4)
    assert fault(FaultKind.GATEWAY, "gateway12").target_numbers == (12,)
    assert fault(FaultKind.DIE, "n3.npu5.die1").until_s == 3.0
    assert fault(FaultKind.DIE, "n3.npu5.die1", duration_s=math.inf).until_s == math.inf
    bare = FaultUnits(Topology(CLOUDMATRIX384), gateways=0)
    with pytest.raises(SpecError, match="gateway0 does not exist; there are none"):
        bare.require(fault(FaultKind.GATEWAY, "gateway0"))


@pytest.mark.parametrize(
    ("kind", "target", "changes", "message"),
    [
        (FaultKind.DIE, "n3.npu5", {}, "written like n3.npu5.die1"),
        (FaultKind.NPU, "n3.npu5.die1", {}, "written like n3.npu5"),
        (FaultKind.NODE, "node3", {}, "written like n3"),
        (FaultKind.UB_SUBPLANE, "subplane4", {}, "written like sn0.subplane4"),
        (FaultKind.DIE, "n3.npu5.die1", {"at_s": -1.0}, "at_s is -1"),
        (FaultKind.DIE, "n3.npu5.die1", {"at_s": math.inf}, "at_s is inf"),
        (FaultKind.DIE, "n3.npu5.die1", {"duration_s": -1.0}, "duration_s is -1"),
        (FaultKind.DIE, "n3.npu5.die1", {"duration_s": math.nan}, "duration_s is nan"),
        (FaultKind.DIE, "n3.npu5.die1", {"factor": 1.0}, "must be 0"),
        (FaultKind.RDMA_LINK, "n3.npu5.die1", {"factor": 1.0}, "from 0 to below 1"),
        (FaultKind.STRAGGLER, "n3.npu5.die1", {"factor": 0.9}, "at least 1"),
        (FaultKind.STRAGGLER, "n3.npu5.die1", {"factor": math.nan}, "at least 1"),
        (FaultKind.HBM, "n3.npu5.die1", {"factor": 0.0}, "above 0, at most 1"),
        (FaultKind.NETWORK_GLITCH, "sn0", {"factor": 1.5}, "a whole number"),
        (FaultKind.NETWORK_GLITCH, "sn0", {"factor": math.inf}, "a whole number"),
    ],
)
def test_impossible_faults_are_refused(kind: FaultKind, target: str, changes: dict[str, float], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        fault(kind, target, **changes)


def test_tables_give_faults_in_order_with_the_usual_numbers_where_they_have_none() -> None:
    entries = [
        {"at_s": 600, "kind": "npu", "target": "n3.npu5", "duration_s": math.inf},
        {"at_s": 60.5, "kind": "straggler", "target": "n0.npu0.die1", "factor": 2},
        {"at_s": 1, "kind": "gateway", "target": "gateway1"},
    ]
    assert faults_from(entries, "faults.toml") == (
        Fault(Seconds(1.0), FaultKind.GATEWAY, "gateway1", Seconds(300.0), 0.0),
        Fault(Seconds(60.5), FaultKind.STRAGGLER, "n0.npu0.die1", Seconds(600.0), 2.0),
        Fault(Seconds(600.0), FaultKind.NPU, "n3.npu5", Seconds(math.inf), 0.0),
    )
    assert faults_from([], "faults.toml") == ()


def test_rates_are_those_of_a_table_over_the_published_ones() -> None:
    rates = rates_from({"published": 10, "die": 0.5, "kill": 2}, "faults.toml")
    assert (rates.die, rates.kill, rates.npu) == (0.5, 2.0, 10 * RATES[FaultKind.NPU].value)
    assert rates_from({}, "faults.toml") == NO_FAULTS
    with pytest.raises(SpecError, match=r"faults.toml: \[rates\] unknown kind 'stragler', did you mean 'straggler'"):
        rates_from({"stragler": 1}, "faults.toml")
    processes = FaultUnits(Topology(CLOUDMATRIX384), 1, 2, {"decode": 2})
    drawn = fault_schedule(processes, rates_from({"kill": 60}, ""), HOUR, 1)
    assert {fault.target for fault in drawn} == {"decode0", "decode1", "memory0", "memory1"}


GOOD = {"at_s": 1, "kind": "npu", "target": "n3.npu5"}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("npu", "each fault as a table"),
        ({}, "each fault as a table"),
        ([GOOD, 3], "fault 2: 3 is no table"),
        ([GOOD | {"targt": "x"}], "unknown key 'targt', did you mean 'target'"),
        ([{"kind": "npu", "target": "n3.npu5"}], "fault 1: at_s is missing"),
        ([GOOD | {"kind": "stragler"}], "unknown kind 'stragler', did you mean 'straggler'"),
        ([GOOD | {"kind": ["npu"]}], "unknown kind"),
        ([GOOD | {"target": 3}], "target is 3; it must be a name"),
        ([GOOD | {"at_s": "soon"}], "at_s is 'soon'; it must be a number"),
        ([GOOD | {"at_s": True}], "at_s is True; it must be a number"),
        ([GOOD | {"at_s": 10**400}], "at_s is too large"),
        ([GOOD | {"at_s": math.nan}], "at_s is nan"),
        ([GOOD | {"factor": 2}], "factor is 2"),
    ],
)
def test_a_wrong_schedule_is_told_in_one_line(table: object, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        faults_from(table, "faults.toml")
    assert str(caught.value).startswith("faults.toml: ")
    assert "\n" not in str(caught.value)


def test_recovery_takes_as_long_as_published_and_says_what_was_not_measured() -> None:
    assert recovery_time(FaultKind.DIE, Recovery.RESTART) == 83.1
    assert recovery_time(FaultKind.NPU) == 12.8
    assert recovery_time(FaultKind.DIE, Recovery.REDUNDANT_EXPERTS, DieRole.ATTENTION) == 10.2
    assert recovery_time(FaultKind.DIE, Recovery.REDUNDANT_EXPERTS, DieRole.EXPERT) == 10.7
    assert recovery_time(FaultKind.DIE, Recovery.MISSING_EXPERTS, DieRole.EXPERT) == 10.8
    assert recovery_time(FaultKind.DIE, Recovery.ROLE_SWITCH, DieRole.EXPERT) == 52.7
    for recovery in (Recovery.MISSING_EXPERTS, Recovery.ROLE_SWITCH):
        colocated = recovery_figure(FaultKind.DIE, recovery)
        assert colocated.confidence == "derived"
        assert colocated.value == pytest.approx(recovery_time(FaultKind.DIE, recovery, DieRole.EXPERT) + 2.1)
    assert recovery_figure(FaultKind.NODE, Recovery.ROLE_SWITCH).value == 83.1
    assert recovery_figure(FaultKind.NODE).confidence == "derived"
    for kind in set(FaultKind) - {FaultKind.DIE, FaultKind.NPU, FaultKind.NODE, FaultKind.KILL}:
        assert recovery_time(kind) == 0.0


def test_times_are_texts_where_somebody_reads_them() -> None:
    entry = {"at_s": "10min", "kind": "npu", "target": "n3.npu5", "duration_s": "1min"}

    def read(text: str) -> float:
        return 60.0 * float(text.removesuffix("min"))

    (fault,) = faults_from([entry], "", read)
    assert (fault.at_s, fault.duration_s) == (600.0, 60.0)
    with pytest.raises(SpecError, match="at_s is '10min'; it must be a number"):
        faults_from([entry], "")
    with pytest.raises(SpecError, match="fault 1: at_s: could not convert"):
        faults_from([entry | {"at_s": "soon"}], "", read)
