"""Generated files of deploy/ are up to date."""

import pytest

from deploy.grafana.source.all import BOARDS
from deploy.grafana.source.all import FOLDER as BOARDS_FOLDER
from deploy.kuberay.generate import FOLDER, MADE


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_is_up_to_date(name: str) -> None:
    text = (BOARDS_FOLDER / f"{name}.json").read_text(encoding="utf-8")
    assert text == BOARDS[name](), "python -m deploy.grafana.source writes it anew"


def test_there_are_no_other_boards() -> None:
    assert {path.stem for path in BOARDS_FOLDER.iterdir()} == set(BOARDS)


@pytest.mark.parametrize("name", MADE)
def test_a_file_for_kuberay_is_up_to_date(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == MADE[name](), "python -m deploy.kuberay.generate writes it"
