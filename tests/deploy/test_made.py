"""Files that are made of others are up to date."""

import pytest

from tests.deploy.made import MADE
from tests.deploy.tools import DEPLOY


@pytest.mark.parametrize("name", MADE)
def test_it_is_up_to_date(name: str) -> None:
    assert (DEPLOY / name).read_text(encoding="utf-8") == MADE[name](), "python -m tests.deploy.made writes it anew"
