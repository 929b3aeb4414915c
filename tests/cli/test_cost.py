"""`cloudmatrix cost`: what it prints, in words and as JSON, and how it refuses."""

import json
import re
from pathlib import Path

import pytest

from hardware.cost.device_file import FOLDER
from hardware.errors import SpecError
from serving.errors import ConfigError
from tests.cli.cost_command import answer, cost, printed, shown
from tests.hardware.cost.known import KNOWN

STORYTELLER = Path(__file__).parents[2] / "deploy" / "models" / "storyteller"

pytestmark = pytest.mark.usefixtures("wide")


def test_decode_explained(capsys: pytest.CaptureFixture[str]) -> None:
    shown(
        capsys, "--batch 96 --context 4096 --explain", "TPOT 48.9 ms", "on 16 cores", "on 8", "core attention",
        "combine", "LM head", "within 5 %", "EP320",
    )  # fmt: skip
    assert "core attention" not in printed(capsys, "--batch", "96")


def test_decode_as_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "--batch", "96", "--context", "4224")
    assert found["tpot_s"] == pytest.approx(49.4e-3, rel=0.05)
    assert found["tokens_per_s_per_npu"] == pytest.approx(96 / found["tpot_s"])
    assert found["step"]["parts"][0]["name"] == "prolog"


def test_drafts_and_half_batches_can_be_switched(capsys: pytest.CaptureFixture[str]) -> None:
    on = answer(capsys)["tpot_s"]
    assert answer(capsys, "--drafts", "0")["tpot_s"] > on
    assert answer(capsys, "--no-microbatch")["tpot_s"] > on
    assert answer(capsys, "--acceptance", "0.9")["tpot_s"] < on
    assert not answer(capsys, "--no-microbatch")["step"]["microbatch"]
    assert "no half batches" in printed(capsys, "--no-microbatch")


def test_prefill(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "--prefill", "262144", "--perfect-balance")
    assert found["tokens_per_s_per_npu"] == pytest.approx(6688, rel=0.05)
    cached = answer(capsys, "--prefill", "262144", "--reuse", "0.5")
    assert cached["pool_load_s"] > 0 == found["pool_load_s"]
    assert cached["step"]["total_s"] < found["step"]["total_s"]
    shown(
        capsys, "--prefill 65536 --reuse 0.5 --explain", "50 % cached", "all-gather of latents",
        "dispatch and combine", "2.14 GiB of cached blocks",
    )  # fmt: skip


def test_the_largest_batch(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "--tpot", "50")
    assert 92 <= found["batch_per_npu"] <= 100 < found["batch_that_fits"]
    assert found["tpot_s"] <= 0.050
    assert "limited by latency" in printed(capsys, "--tpot", "50")
    assert "limited by memory" in printed(capsys, "--tpot", "5000", "--context", "100000")
    assert "no batch keeps 1 ms" in printed(capsys, "--tpot", "1")
    assert answer(capsys, "--tpot", "1")["tpot_s"] is None


def test_other_devices_and_models(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--device", "h200", "--batch", "128")
    assert "not checked" in text
    assert "144 dies" in text
    assert "exchange behind the other half" in text
    mine = printed(capsys, "--device", str(FOLDER / "h800.toml"), "--model", str(STORYTELLER), "--dies", "8")
    assert "storyteller on NVIDIA H800" in mine


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert "ascend-910c" in printed(capsys, "--list")
    listed = {one["name"]: one for one in answer(capsys, "--list")}
    assert listed["h200"]["checked"] is False
    assert listed["vllm-ascend"]["kind"] == "engine"


def test_calibration_in_all_forms(capsys: pytest.CaptureFixture[str]) -> None:
    shown(capsys, "--calibrate --device h100", "degrees of freedom", "prefill_imbalance", "left out", "missed: ")
    assert "| dispatch, EP8 |" in printed(capsys, "--calibrate", "--device", "h100", "--markdown")
    assert answer(capsys, "--calibrate", "--device", "h800")["groups"][0]["rows"][0]["published"] == 7839
    assert "steps are not checked" in printed(capsys, "--calibrate", "--device", "h200")


def test_what_does_not_fit_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert "294 such sequences per NPU" in printed(capsys, "--batch", "294")
    assert "does not fit" not in printed(capsys, "--batch", "294")
    assert "does not fit into the memory" in printed(capsys, "--batch", "295")
    assert answer(capsys, "--batch", "295")["batch_that_fits"] == 294


def test_prompts_that_do_not_fit_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert "does not fit" not in printed(capsys, "--prefill", "323500")
    assert "does not fit into the memory" in printed(capsys, "--prefill", "1e6")
    assert answer(capsys, "--prefill", "65536")["kv_tokens_per_instance"] == 323_509


def test_the_largest_batch_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--tpot", "30", "--explain")
    assert "44 sequences per NPU" in text
    assert "batch 44 per NPU" in text
    assert "core attention" in text


def test_how_far_to_trust_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "expect within 5 %" in printed(capsys)
    assert "expect within 14 %" in printed(capsys, "--drafts", "2")
    shape = Path(__file__).parents[2] / "deploy" / "models" / "deepseek-r1-shape"
    assert "expect within 5 %" in printed(capsys, "--model", str(shape))
    config = json.loads((shape / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 30}), encoding="utf-8")
    assert "not checked: all published rows are of DeepSeek-R1" in printed(capsys, "--model", str(tmp_path))


def test_a_dense_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = ("--model", written(tmp_path, "llama-3.1-8b"))
    text = shown(
        capsys, (*model, "--batch", "64", "--explain"), "llama-3.1-8b on", "0 drafts a step", "then feed-forward",
        "dense feed-forward",
    )  # fmt: skip
    assert "no published row of grouped attention was fitted" in text
    assert not any(words in text for words in ("expert", "dispatch", "absorption", "MTP"))
    text = printed(capsys, *model, "--prefill", "65536", "--explain")
    assert "no published row of grouped attention was fitted" in text
    for words in ("feed-forward products", "all-gather of keys and values"):
        assert words in text
    assert not any(words in text for words in ("expert", "dispatch", "latents"))
    assert "grouped attention" in printed(capsys, *model, "--tpot", "20")
    assert answer(capsys, *model)["step"]["microbatch"] is False


def test_a_mixture_with_grouped_attention(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = ("--model", written(tmp_path, "glm-4.5-air"))
    shown(
        capsys, (*model, "--dies", "32", "--explain"), "1 draft a step", "dispatch", "expert products", "MTP head",
        "grouped attention was fitted",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("llama-3.1-8b", ("--drafts", "1"), "llama-3.1-8b: has no MTP module to draft 1 tokens with"),
        ("llama-3.1-8b", ("--microbatch",), "--microbatch hides dispatch and combine, and llama-3.1-8b is dense"),
        ("llama-3.1-8b", ("--calibrate",), "--calibrate refits to published rows, which are of DeepSeek-R1"),
        ("llama-3.1-70b", (), "give a dense model a larger attention_tp"),
        ("kimi-k2", ("--drafts", "1"), "kimi-k2: has no MTP module"),
    ],
)
def test_what_is_not_priced_of_a_model(name: str, words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, SpecError), match=re.escape(message)):
        cost("--model", written(tmp_path, name), *words)


def test_what_is_priced_of_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "TPOT" in printed(capsys, "--model", written(tmp_path, "deepseek-v3.2"), "--context", "2048")
    assert "0 drafts a step" in printed(capsys, "--model", written(tmp_path, "kimi-k2"))


def written(folder: Path, name: str) -> str:
    """The folder of a published model's configuration."""
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps(KNOWN[name]), encoding="utf-8")
    return str(folder / name)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--dies", "64"), "dies 64, not 320"),
        (("--context", "8192"), "context 8,192"),
        (("--batch", "4"), "batch 4"),
        (("--batch", "8", "--microbatch"), "half batches at batch 8"),
        (("--tpot", "30", "--dies", "64"), "dies 64, not 320"),
        (("--tpot", "30", "--context", "512"), "context 512"),
        (("--prefill", "1e6"), "new tokens per die 31,250"),
        (("--prefill", "65536"), "new tokens per die 2,048"),
        (("--prefill", "524288", "--dies", "64"), "dies 64, not 32"),
        (("--prefill", "262144", "--prompt", "32768"), "prompts 32,768"),
        (("--prefill", "262144", "--reuse", "0.95"), "cached share 0.95"),
    ],
)
def test_outside_of_what_was_fitted_it_says_so(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], named: str
) -> None:
    for told in (" ".join(printed(capsys, *words).split()), answer(capsys, *words)["trust"]):
        assert re.match(r".*expect within [1-9]\d %, outside of what was fitted: ", told)
        assert named in told


def test_inside_it_promises(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ((), ("--tpot", "30"), ("--prefill", "262144"), ("--prefill", "262144", "--reuse", "0.9")):
        assert "expect within 5 %" in printed(capsys, *words)
        assert "expect within 5 %" in answer(capsys, *words)["trust"]
    assert answer(capsys, "--tpot", "1")["trust"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--batch", "0"), "--batch is 0; it must be above zero"),
        (("--context", "nan"), "--context is nan"),
        (("--dies", "-1"), "--dies is -1"),
        (("--reuse", "1"), "--reuse is 1; it is a share"),
        (("--markdown",), "add --calibrate"),
        (("--prefill", "65536", "--microbatch"), "--microbatch goes with decode; with --prefill it has"),
        (("--prefill", "65536", "--drafts", "3"), "--drafts goes with decode"),
        (("--prefill", "65536", "--batch", "7"), "--batch goes with decode"),
        (("--tpot", "30", "--batch", "7"), "--batch goes with a step; with --tpot it has no effect"),
        (("--perfect-balance",), "--perfect-balance goes with --prefill; without it, it has no effect"),
        (("--batch", "8", "--reuse", "0.5"), "--reuse goes with --prefill"),
    ],
)
def test_wrong_numbers(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cost(*words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--device", "ascend"), "no device named 'ascend'"),
        (("--model", "nowhere"), "give a checkpoint folder"),
        (("--acceptance", "2"), "not possible; 0 or more, a share of 0 to 1"),
        (("--dies", "4"), "does not fit on 4 dies"),
        (("--prefill", "65536", "--dies", "4"), "does not fit on 4 dies"),
    ],
)
def test_wrong_systems(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        cost(*words)


# --- engines ------------------------------------------------------------------------------------------------------
MEASURED = """phase,dies,batch_per_npu,context_tokens,tpot_ms,tokens_per_die,prompt_tokens,step_ms,source
decode,32,32,3000,60,,,,mine
prefill,16,,,,2048,2048,1000,mine
"""


def test_an_engine_takes_longer_and_says_for_whom_it_holds(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--batch", "46.6", "--context", "4250", "--dies", "32")
    plain, vllm = answer(capsys, *words), answer(capsys, *words, "--engine", "vllm-ascend")
    assert 1e3 * vllm["tpot_s"] == pytest.approx(48.8, rel=1e-3), "the published row"
    assert plain["tpot_s"] < vllm["tpot_s"]
    assert plain["engine"] == "CloudMatrix-Infer itself; open engines need more, see --engine"
    assert (vllm["device"], vllm["expected_error"]) == ("ascend-910c", 0.1)
    assert vllm["engine"].startswith("vllm-ascend: ")
    text = printed(capsys, *words, "--engine", "vllm-ascend", "--explain")
    assert "engine: vllm-ascend: " in text
    assert re.search(r"1\.\d+ x \(", text), "operators say by what they were multiplied"
    assert "engine: CloudMatrix-Infer itself" in printed(capsys, "--tpot", "30")
    assert "engine: CloudMatrix-Infer itself" in printed(capsys, "--prefill", "262144")


def test_a_fit_is_printed_written_and_taken(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    measured, out = tmp_path / "measured.csv", tmp_path / "my-engine.toml"
    measured.write_text(MEASURED, encoding="utf-8")
    shown(
        capsys, ("--fit", str(measured), "--out", str(out)), "1 row, 1 parameter, 0 degrees of freedom",
        "no row is left to judge the fit by", f"{measured}:2", "expect within 10 % inside of batch 32 per NPU",
        "is extrapolation", f"wrote {out}",
    )  # fmt: skip
    found = answer(capsys, "--batch", "32", "--context", "3000", "--dies", "32", "--drafts", "0", "--engine", str(out))
    assert 1e3 * found["tpot_s"] == pytest.approx(60, rel=1e-5)
    fitted = answer(capsys, "--fit", str(measured))
    assert fitted["engine"]["decode"]["rows"] == 1
    assert [fit["degrees_of_freedom"] for fit in fitted["fits"]] == [0, 0]


def test_a_fit_of_one_kind_says_what_is_missing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    measured = tmp_path / "measured.csv"
    measured.write_text("".join(MEASURED.splitlines(keepends=True)[:2]), encoding="utf-8")
    assert "no row of prefill" in printed(capsys, "--fit", str(measured))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--engine", "vllm"), "no engine named 'vllm'"),
        (("--out", "x.toml"), "--out is where --fit writes"),
        (("--fit", "{}", "--out", "x.csv"), r"--out x\.csv: the profile's name must end in \.toml"),
        (("--fit", "{}", "--out", "/nowhere/x.toml"), r"--out /nowhere/x\.toml cannot be written"),
        (("--fit", "{}", "--engine", "vllm-ascend"), "vllm-ascend states nothing: leave it out"),
        (("--fit", "/nowhere/m.csv"), r"/nowhere/m\.csv: cannot be read"),
        (("--calibrate", "--engine", "vllm-ascend"), "it accepts no --engine"),
    ],
)
def test_engines_are_refused_in_one_line(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    measured = tmp_path / "measured.csv"
    measured.write_text(MEASURED, encoding="utf-8")
    with pytest.raises((ConfigError, SpecError), match=told):
        cost(*(str(measured) if word == "{}" else word for word in words))


def test_an_engine_is_judged_by_rows_that_it_has_not_seen(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--judge", "hardware/cost/engines/vllm-ascend.csv", "--engine", "sglang-ascend")
    text = shown(
        capsys, words, "vllm-ascend.csv:7", "TPOT 48.8 ms", "2,284 tokens/s a NPU", "within",
        "2 of 2 rows within their stated error",
    )  # fmt: skip
    decode, prefill = answer(capsys, *words)
    assert decode["error"] == pytest.approx(decode["predicted_s"] / decode["measured_s"] - 1)
    assert decode["held"]
    assert prefill["held"]
    assert prefill["error"] < 0, "faster than it was: a higher rate"
    assert re.search(r"2,284 tokens/s a NPU +2,[5-9]\d\d tokens/s a NPU", text)


def test_what_a_judged_row_was_said_to_be_and_is_not(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = tmp_path / "slow.csv"
    rows.write_text("phase,dies,batch_per_npu,context_tokens,tpot_ms\ndecode,320,96,4096,150\n")
    text = printed(capsys, "--judge", str(rows))
    assert "!" in text
    assert "0 of 1 rows within their stated error" in text


@pytest.mark.parametrize("flag", [("--batch", "8"), ("--reuse", "0.5"), ("--microbatch",)])
@pytest.mark.parametrize("question", ["--fit", "--judge"])
def test_flags_of_one_step_do_not_go_with_rows(question: str, flag: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=f"{flag[0]} is of one step; rows of {question} say their own"):
        cost(question, "hardware/cost/engines/vllm-ascend.csv", *flag)


def test_formats_are_as_stated_or_as_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    shape = str(STORYTELLER.parent / "deepseek-r1-shape")
    assert "weights W8A8; KV BF16" in printed(capsys, "--model", shape), "its FP8 as Ascends serve it"
    assert answer(capsys, "--model", shape, "--device", "h800")["formats"] == "weights FP8; KV BF16"
    asked = answer(capsys, "--weights", "w4a8", "--kv", "int8")
    assert asked["formats"] == "weights W8A8, of experts W4A8; KV INT8"
    assert asked["kv_tokens_per_die"] > 1.7 * answer(capsys)["kv_tokens_per_die"]
    assert asked["expected_error"] > 0.1
    assert "neighbours" in asked["trust"]
    with pytest.raises(SpecError, match="ascend-910c multiplies no FP8"):
        cost("--weights", "fp8")
    with pytest.raises(SpecError, match="'int7' are not known"):
        cost("--weights", "int7")
