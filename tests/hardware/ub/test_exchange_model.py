"""The exchange's protocol over every order of its stores, with a death at any of them; each error is found."""

import pytest

from tests.hardware.ub.exchange_model import Mistake, ProtocolError, Setting, search


def test_every_order_is_safe_and_ends() -> None:
    """Two steps of a layer, and a step of two layers: every area and every word is reused."""
    assert search(Setting(steps=2)).endings == {"done in epoch 1"}
    assert search(Setting(steps=1, layers=2)).endings == {"done in epoch 1"}
    assert search(Setting(steps=4, layers=0)).endings == {"done in epoch 1"}


def test_a_death_at_any_store_ends_every_wait_and_the_others_go_on_alone() -> None:
    found = search(Setting(steps=1, crash=True))
    assert found.endings == {"done in epoch 1", "peer lost"}
    found = search(Setting(steps=1, crash=True, raise_epoch=True))
    assert found.endings == {"done in epoch 2"}


@pytest.mark.parametrize(
    ("mistake", "setting", "seen"),
    [
        (Mistake.SIGNAL_BEFORE_PAYLOAD, Setting(mistake=Mistake.SIGNAL_BEFORE_PAYLOAD), "reads"),
        (Mistake.ONE_AREA, Setting(mistake=Mistake.ONE_AREA), "reads"),
        (Mistake.ONE_COLUMN, Setting(layers=0, mistake=Mistake.ONE_COLUMN), "awaits"),
        (
            Mistake.LOOK_AT_AWAITED_ONLY,
            Setting(steps=1, crash=True, mistake=Mistake.LOOK_AT_AWAITED_ONLY),
            "waits for ever",
        ),
        (
            Mistake.STAGE_BEFORE_ANNOUNCEMENT,
            Setting(steps=1, crash=True, raise_epoch=True, mistake=Mistake.STAGE_BEFORE_ANNOUNCEMENT),
            "reads",
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Mistake) else "",
)
def test_each_mistake_is_found(mistake: Mistake, setting: Setting, seen: str) -> None:
    with pytest.raises(ProtocolError, match=seen):
        search(setting)
