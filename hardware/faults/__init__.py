"""Hardware faults: kinds, rates, a seeded schedule, and recovery times."""

from hardware.faults.fault import FACTORS, TARGETS, FactorMeaning, Fault, FaultKind
from hardware.faults.rates import (
    DURATIONS,
    NO_FAULTS,
    PROCESS_KINDS,
    RATES,
    STRENGTHS,
    FaultRates,
    faults_from,
    rates_from,
)
from hardware.faults.recovery import DieRole, Recovery, recovery_figure, recovery_time
from hardware.faults.schedule import FaultUnits, fault_schedule

__all__ = [
    "DURATIONS",
    "FACTORS",
    "NO_FAULTS",
    "PROCESS_KINDS",
    "RATES",
    "STRENGTHS",
    "TARGETS",
    "DieRole",
    "FactorMeaning",
    "Fault",
    "FaultKind",
    "FaultRates",
    "FaultUnits",
    "Recovery",
    "fault_schedule",
    "faults_from",
    "rates_from",
    "recovery_figure",
    "recovery_time",
]
