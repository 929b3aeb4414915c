"""What tests of several executors have in common."""

import pytest

from serving.instance.core.speculation import Acceptance, Speculation


@pytest.fixture
def every_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draft as many tokens as possible, whether it pays or not: tests of results do not depend on times."""

    def most(self: Speculation, acceptance: Acceptance) -> int:
        return self.most

    monkeypatch.setattr(Speculation, "guesses", most)
