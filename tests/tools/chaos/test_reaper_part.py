"""The launcher's reaper is a target of chaos, recognised by its command line."""

from pathlib import Path

from serving.faults.scenario import ONLY_IF_NAMED, PARTS
from serving.launch.reaper import Reaper
from serving.tools.chaos.machines import find_parts, part_of


def test_it_is_among_the_victims(tmp_path: Path) -> None:
    assert "reaper" in PARTS
    assert "reaper" not in ONLY_IF_NAMED
    folder = tmp_path / "cloudmatrix-0fedcb"
    reaper = Reaper([folder / "segment-"], folder / "kvcache")
    try:
        assert [(one.pool, one.pid) for one in find_parts("0fedcb")] == [("reaper", reaper._process.pid)]
        reaper._process.kill()
        reaper._process.wait()
        assert reaper.tend()
        assert [(one.pool, one.pid) for one in find_parts("0fedcb")] == [("reaper", reaper._process.pid)]
    finally:
        reaper.dismiss()


def test_options_of_python_hide_nobody() -> None:
    assert part_of("/usr/bin/python3 -I -S /x/serving/launch/reaper.py /tmp/cloudmatrix-abc123/kv /x/y-") == "reaper"
    assert part_of("/usr/bin/python3 -I -S /x/agent_keeper.py /usr/bin/python /x/reaper.py") is None
