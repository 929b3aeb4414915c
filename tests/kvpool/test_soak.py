"""A short soak; the long one is `python -m tests.kvpool.soak`."""

from pathlib import Path

import pytest

from tests.kvpool.soak import soak


@pytest.mark.timeout(120)
def test_no_wrong_byte_is_served_and_every_audit_is_clean(tmp_path: Path) -> None:
    ssd = tmp_path / "ssd"
    ssd.mkdir()
    counts, bad = soak(2.5, seed=4, ssd=ssd, say=lambda line: None)
    assert bad == []
    assert counts["blocks read"] > 50
    assert counts["blocks stored"] > 50
