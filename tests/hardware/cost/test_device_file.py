"""Device files: the shipped ones agree with the catalogue, and every error is reported in one clear line."""

from pathlib import Path

import pytest

from hardware.cost import CostModel, DecodeLoad, PrefillLoad, device_names, load_device
from hardware.cost.device_file import FOLDER, parse_device
from hardware.cost.trust import decode_trust
from hardware.errors import SpecError
from hardware.spec import catalog

TEXT = (FOLDER / "ascend-910c.toml").read_text()


def changed(old: str, new: str) -> str:
    assert TEXT.count(old) == 1, f"{old!r} is {TEXT.count(old)} times in the file"
    return TEXT.replace(old, new)


def test_every_shipped_device_loads_and_every_number_has_a_source() -> None:
    assert device_names() == ("ascend-910b", "ascend-910c", "ascend-910c-560t", "h100", "h20", "h200", "h800")
    for name in device_names():
        device = load_device(name)
        assert device.name == name
        assert len(device.constants) > 60
        assert all(len(constant.source) > 5 for constant in device.constants.values())
    found = load_device("ascend-910c").constants["die.hbm_bytes_per_s"]
    assert (found.value, found.source) == (catalog.DIE_HBM_RATE.value, catalog.DIE_HBM_RATE.source)
    assert load_device("ascend-910c").constants["die.int8_flops_per_s"].status == "derived"


def test_a_slower_bin_has_other_peaks_and_the_same_memory_and_links() -> None:
    fast, slow = load_device("ascend-910c"), load_device("ascend-910c-560t")
    assert (slow.die.int8_flops_per_s, slow.die.bf16_flops_per_s) == (560e12, 245.8e12)
    assert (slow.die.hbm_bytes, slow.die.hbm_bytes_per_s) == (fast.die.hbm_bytes, fast.die.hbm_bytes_per_s)
    assert (slow.links, slow.loading, slow.experts) == (fast.links, fast.loading, fast.experts)
    ratio = slow.calibration.prefill_vector_s / fast.calibration.prefill_vector_s
    assert ratio == pytest.approx(fast.die.vector_flops_per_s / slow.die.vector_flops_per_s, rel=1e-4)


@pytest.mark.parametrize("name", ["ascend-910b", "ascend-910c-560t", "h200"])
def test_devices_without_rows_have_nothing_fitted_and_are_not_trusted(name: str) -> None:
    device = load_device(name)
    assert not [key for key, one in device.constants.items() if one.status == "fitted"]
    assert "neighbours" in decode_trust(CostModel(device), 96, 4096).text


def test_a_step_follows_the_peaks_of_the_device() -> None:
    """H20: a seventh of the H200's products, five sixths of its memory rate. A2: exchanges over RDMA."""
    small, large = DecodeLoad(4, 4 * 1024), PrefillLoad(262_144, 262_144 * 2048)
    h20, h200, a2, a3, slow = (
        CostModel(load_device(one)) for one in ("h20", "h200", "ascend-910b", "ascend-910c", "ascend-910c-560t")
    )
    assert h20.prefill_step_s(large) > 3 * h200.prefill_step_s(large)
    assert h200.decode_step_s(small) < h20.decode_step_s(small) < 1.5 * h200.decode_step_s(small)
    in_turn = DecodeLoad(48, 48 * 4096, microbatch=False)
    assert a2.decode_step_s(in_turn) > 1.2 * a3.decode_step_s(in_turn)
    assert a3.prefill_step_s(large) < slow.prefill_step_s(large) < 1.5 * a3.prefill_step_s(large)


def test_a_file_of_one_s_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(changed('title = "Ascend 910C die, CloudMatrix384"', 'title = "Mine"'))
    device = load_device(path)
    assert (device.name, device.title) == ("mine", "Mine")
    assert device.calibration == load_device("ascend-910c").calibration


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("gemm_utilisation =", "gemm_utilization =", r"key calibration\.gemm_utilization \(did you mean gemm_ut"),
        ("[loading]", "[laoding]", r"unknown key laoding \(did you mean loading\?\)"),
        ('title = "Ascend 910C die, CloudMatrix384"', "title = 3", "title is 3"),
        ('title = "Ascend 910C die, CloudMatrix384"', "", "title is missing"),
        ("value = 134.2e9,", "value = 0,",
         r"loading\.pool_bytes_per_s is 0; it must be a number above zero"),
        ("value = 134.2e9,", "value = true,", r"loading\.pool_bytes_per_s is True"),
        ("value = 134.2e9,", "value = inf,", r"loading\.pool_bytes_per_s is inf"),
        ("value = 134.2e9,", "valeu = 24,",
         r"unknown key loading\.pool_bytes_per_s\.valeu \(did you mean value\?\)"),
        ('value = 134.2e9, status = "derived"', 'value = 1, status = "sure"', "status is 'sure'"),
        ('value = 128, status = "published", source = "V2 Table 7: batch 128 per rank"',
         'value = 128, status = "published", source = " "', r"experts\.tokens: name the origin of the number"),
        ('"DIE_HBM_RATE"', '"DIE_HBM_RATES"', r"no figure 'DIE_HBM_RATES' \(did you mean DIE_HBM_RATE"),
        ('{ figure = "NPU_DIES" }', '{ figure = "NPU_DIES", value = 2 }', r"unknown key die\.per_npu\.value"),
        ('decode_overlap = "split-cores"', 'decode_overlap = "both"', r"decode_overlap is 'both'; it must be one"),
        ("values = [8, 16, 32, 64, 128, 256]", "values = [8, 16]", "must be equally long"),
        ("values = [8, 16, 32, 64, 128, 256]", "values = [16, 8, 32, 64, 128, 256]", "rising whole numbers"),
        ("values = [8, 16, 32, 64, 128, 256]", "values = []", "a list of numbers above zero"),
        ("hbm_share = { value = 0.9,", "hbm_share = { value = 1.1,", "a share of a peak; it cannot exceed 1"),
        ("split_high = { value = 20,", "split_high = { value = 24,", "must be within 1"),
        ("shared_die_share = { value = 0.1,", "shared_die_share = { value = 1.0,", "leaves no cores, or no dies"),
    ],
)  # fmt: skip
def test_mistakes_are_named(old: str, new: str, words: str) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        parse_device(changed(old, new), "mine")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("device mine: ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("title =", "no TOML"),
        (TEXT.split("[calibration]")[0], "calibration is missing"),
        (TEXT.split("[die]")[0] + "die = 3\n" + "[links]" + TEXT.split("[links]")[1], "die must be a table"),
        (changed('cores = { figure = "DIE_CUBE_CORES" }', "cores = 24"), r"die\.cores must be \{ value = \.\.\."),
        (changed("degrees = { values = [8, 16, 32, 64, 128, 256]", "degrees = [8]#"), r"degrees must be \{ val"),
    ],
)  # fmt: skip
def test_wrong_structure_is_named(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        parse_device(text, "mine")


def test_unknown_and_unreadable_devices(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"no device named 'ascend-910d' \(did you mean ascend-910c\?\); there"):
        load_device("ascend-910d")
    with pytest.raises(SpecError, match="cannot be read: No such file"):
        load_device(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="cannot be read"):
        load_device(tmp_path / "binary.toml")
