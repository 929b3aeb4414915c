"""Engine profiles are read strictly: each error is reported in one line that names it."""

from pathlib import Path

import pytest

from hardware.cost.engine_profile import ENGINE_FOLDER, engine_names, engine_text, load_engine, parse_engine
from hardware.errors import SpecError

TEXT = (ENGINE_FOLDER / "vllm-ascend.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", engine_names())
def test_every_shipped_engine_is_read_and_written_back(name: str) -> None:
    profile = load_engine(name)
    assert parse_engine(engine_text(profile), name) == profile


def test_shipped_names_and_what_cannot_be_read(tmp_path: Path) -> None:
    assert engine_names() == ("cann-recipes", "cloudmatrix-infer", "sglang-ascend", "vllm-ascend", "xdeepserve")
    assert load_engine("xdeepserve").prefill is None, "no rate of its prefill is published"
    with pytest.raises(SpecError, match=r"neither \[decode\] nor \[prefill\]"):
        parse_engine('title = "a"\ndevice = "b"\nmodel = "c"\n', "mine")
    with pytest.raises(SpecError, match=r"no engine named 'vllm' \(did you mean vllm-ascend\?\); there are: "):
        load_engine("vllm")
    with pytest.raises(SpecError, match=r"none\.toml: cannot be read"):
        load_engine(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("work = 1.", "wrok = 1.", r"unknown key decode\.wrok \(did you mean work\?\)"),
        ("title =", "titel =", r"unknown key titel \(did you mean title\?\)"),
        ("step_s = 0\n", "", r"decode\.step_s is missing"),
        ("step_s = 0\n", "step_s = -1\n", r"decode\.step_s is -1; it must be a number of at least 0"),
        ("step_s = 0\n", "step_s = inf\n", r"decode\.step_s is inf"),
        ("step_s = 0\n", "step_s = true\n", r"decode\.step_s is True"),
        ("rows = 1\n", "rows = 0\n", r"decode\.rows is 0; it must be a whole number above 0"),
        ("rows = 1\n", "rows = 1.5\n", r"decode\.rows is 1\.5; it must be a whole number above 0"),
        ("dies = [32, 32]", "dies = [32, 16]", r"decode\.region\.dies is \[32, 16\]; it must be \[smallest, largest\]"),
        ("dies = [32, 32]", "dies = 32", r"decode\.region\.dies is 32"),
        ("dies = [32, 32]", 'dies = ["a", "b"]', r"decode\.region\.dies is \['a', 'b'\]"),
        ("dies = [32, 32]", "", r"decode\.region\.dies is missing"),
        ("[decode.region]", "[decode.regoin]", r"unknown key decode\.regoin \(did you mean region\?\)"),
        ('device = "ascend-910c"', "device = 3", r"device is 3; it must be a name"),
        ('device = "ascend-910c"', 'device = "', r"no TOML"),
    ],
)
def test_mistakes_are_told_in_one_line(old: str, new: str, told: str) -> None:
    assert old in TEXT
    with pytest.raises(SpecError, match=rf"^engine mine: {told}") as caught:
        parse_engine(TEXT.replace(old, new, 1), "mine")
    assert "\n" not in str(caught.value)
