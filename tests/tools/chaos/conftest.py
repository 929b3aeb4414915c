"""Runs of a second or two, with shorter waits and polling periods than real runs."""

import pytest


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter periods; all else is unchanged."""
    monkeypatch.setattr("serving.tools.chaos.final_audit._ANNOUNCED_S", 0.2)
    monkeypatch.setattr("serving.tools.chaos.final_audit._LOOK_EVERY_S", 0.05)
    monkeypatch.setattr("serving.tools.chaos.watch.PERIOD_S", 0.1)
    monkeypatch.setattr("serving.tools.chaos.injector.JUDGED_AFTER_S", 0.3)


@pytest.fixture(autouse=True)
def patient_with_gateways(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway of a busy machine is not down because it responds late."""
    monkeypatch.setattr("serving.tools.chaos.watch.DEADLINE_S", 60.0)
