"""A fit finds the parameters that produced the rows, counts them, and states its error for unseen rows."""

import random
from dataclasses import fields, replace

import pytest

from hardware.cost import CostModel, DecodeLoad, PrefillLoad, load_device
from hardware.cost.engine_fit import EngineFit, fit_engine
from hardware.cost.engine_profile import ENGINE_FOLDER, EnginePhase, engine_names, load_engine
from hardware.cost.measured_file import COLUMNS, MeasuredRow, parse_measured, read_measured
from hardware.errors import SpecError

COST = CostModel(load_device("ascend-910c"))


def fit(*rows: MeasuredRow) -> EngineFit:
    return fit_engine(COST, rows, name="mine", title="my engine")


def decode_row(batch: float, context: float, *, work: float, step_s: float = 0.0, token_s: float = 0.0) -> MeasuredRow:
    """A row of an engine with these times, on 32 dies without drafts."""
    base_s = COST.decode_step_s(DecodeLoad(batch / 2, batch / 2 * context, None, 32, 0))
    values = {"batch_per_npu": batch, "context_tokens": context, "dies": 32.0, "drafts": 0.0, "acceptance": 0.0}
    tpot_ms = 1e3 * (work * base_s + step_s + token_s * batch / 2)
    return MeasuredRow(f"rows:{batch:g}", "decode", values | {"tpot_ms": tpot_ms}, "")


GRID = [(4, 2000), (8, 8000), (16, 1000), (32, 4000), (64, 3000), (96, 6000)]


@pytest.mark.parametrize("name", [name for name in engine_names() if name not in ("cloudmatrix-infer", "cann-recipes")])
def test_shipped_profiles_are_what_their_rows_give(name: str) -> None:
    """After a change of the cost model: cloudmatrix cost --fit hardware/cost/engines/X.csv --out .../X.toml."""
    measured = read_measured(ENGINE_FOLDER / f"{name}.csv")
    found = fit_engine(COST, measured.rows, name=name, title=measured.title).profile
    shipped = load_engine(name)
    assert shipped.title == found.title
    for kind in ("decode", "prefill"):
        mine, kept = getattr(found, kind), getattr(shipped, kind)
        assert (mine is None) == (kept is None)
        for field in fields(EnginePhase) if mine is not None else ():
            value = getattr(mine, field.name)
            expected = pytest.approx(value, rel=1e-3) if isinstance(value, float) else value
            assert getattr(kept, field.name) == expected, (kind, field.name)


def test_one_row_gives_one_number_and_left_out_errors_are_of_fits_without_the_row() -> None:
    found = fit(decode_row(32, 4000, work=1.3))
    assert found.profile.prefill is None
    (decode,) = found.phases
    assert decode.phase.work == pytest.approx(1.3)
    assert (decode.phase.step_s, decode.phase.token_s) == (0, 0)
    assert (decode.phase.rows, decode.phase.parameters, decode.degrees) == (1, 1, 0)
    assert decode.rows[0].error == pytest.approx(0)
    assert decode.rows[0].left_out is None
    assert decode.phase.expected_error == 0.10
    rows = [decode_row(32, 4000, work=1.0), decode_row(64, 4000, work=1.5)]
    (decode,) = fit(*rows).phases
    assert [one.left_out for one in decode.rows] == pytest.approx([0.5, -1 / 3])
    assert decode.phase.expected_error == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("step_s", "token_s", "parameters"), [(0, 0, 1), (0.004, 0, 2), (0, 2e-4, 2), (0.004, 2e-4, 3)]
)
def test_what_made_the_rows_is_found(step_s: float, token_s: float, parameters: int) -> None:
    rows = [decode_row(batch, context, work=1.4, step_s=step_s, token_s=token_s) for batch, context in GRID]
    (decode,) = fit(*rows).phases
    assert (decode.phase.work, decode.phase.step_s, decode.phase.token_s) == pytest.approx(
        (1.4, step_s, token_s), abs=1e-9
    )
    assert decode.phase.parameters == parameters
    assert decode.degrees == len(GRID) - parameters
    assert decode.phase.expected_error == 0.05, "nothing is expected to be better than the published engine's rows"
    assert [(one.low, one.high) for one in decode.phase.region] == [(4, 96), (1000, 8000), (32, 32), (0, 0)]


def test_noise_alone_adds_no_parameters_and_times_are_never_below_zero() -> None:
    draw = random.Random(3)
    rows = [decode_row(batch, context, work=1.4 * draw.uniform(0.85, 1.15)) for batch, context in GRID]
    (decode,) = fit(*rows).phases
    assert decode.phase.parameters == 1
    worst = max(abs(one.left_out or 0) for one in decode.rows)
    assert worst > max(abs(one.error) for one in decode.rows)
    assert worst <= decode.phase.expected_error <= worst + 1e-3
    # A row that would need a negative start: the best fit without it is taken.
    rows = [decode_row(batch, context, work=1.4, step_s=-0.004) for batch, context in GRID]
    (decode,) = fit(*rows).phases
    assert decode.phase.work > 0
    assert min(decode.phase.step_s, decode.phase.token_s) >= 0


def test_prefill_by_rate_and_time_agree_and_own_rows_are_within_what_is_expected() -> None:
    step_s = 2 * COST.prefill_step_s(PrefillLoad(2048 * 16, 2048 * 16 * 3500 * 0.75, 16, first=1750))
    rate = 2048 / 0.5 * 2 / step_s
    header = "phase,dies,tokens_per_die,prompt_tokens,cached_share,step_ms,tokens_per_s_per_npu\n"
    for cells in (f"{step_s * 1e3},", f",{rate}"):
        rows = parse_measured(f"{header}prefill,16,2048,3500,0.5,{cells}\n", "m.csv").rows
        prefill = fit(*rows).profile.prefill
        assert prefill is not None
        assert prefill.work == pytest.approx(2)
        assert prefill.expected_error == 0.15
    own = [decode_row(batch, context, work=1.2, step_s=0.003) for batch, context in GRID]
    profile = fit(*own).profile
    with_engine = CostModel(COST.device, COST.shape, replace(profile, device="ascend-910c"))
    for row in own:
        batch, context = row.values["batch_per_npu"], row.values["context_tokens"]
        predicted = with_engine.tpot_s(batch, context, dies=32, drafts=0) * 1e3
        assert predicted == pytest.approx(row.values["tpot_ms"], rel=0.01)


# --- the file -----------------------------------------------------------------------------------------------------
HEADER = "phase,dies,batch_per_npu,context_tokens,drafts,acceptance,tpot_ms,tokens_per_die,prompt_tokens,step_ms"


def test_every_bad_row_gets_its_line() -> None:
    text = f"""# title: X
{HEADER}

decode,32,46.6,4250,1,0.7,48.8,,,
decoding,32,46.6,4250,,,48.8,,,
decode,0,46.6,4250,,,48.8,,,
decode,32,nan,4250,,,48.8,,,
decode,32,46.6,4250,,,,,,
decode,32,46.6,4250,1,,48.8,,,
decode,32,46.6,4250,1,7,48.8,,,
decode,32,46.6,4250,1.5,0.7,48.8,,,
decode,32,46.6,4250,,,48.8,2048,,
prefill,16,,,,,,2048,3500,
prefill,16,,,,,,2048,many,5
prefill,16,,,,,,2048
"""
    with pytest.raises(SpecError) as caught:
        parse_measured(text, "m.csv")
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0] for line in lines] == [f"m.csv:{at}" for at in range(5, 16)]
    for line, told in zip(
        lines,
        ("phase is 'decoding'", "dies is '0'", "batch_per_npu is 'nan'", "tpot_ms is missing", "go together",
         "acceptance is '7'; it must be a share", "drafts is '1.5'", "tokens_per_die has no meaning for a decode step",
         "one of step_ms and tokens_per_s_per_npu", "prompt_tokens is 'many'", "8 cells where the first line has 10"),
        strict=True,
    ):  # fmt: skip
        assert told in line


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no rows"),
        (HEADER, "no rows"),
        ("phase,dise\ndecode,1\n", "unknown column 'dise'"),
        ("dies,tpot_ms\n1,2\n", "a column `phase`"),
        ("phase,phase\na,b\n", "each column once"),
    ],
)
def test_a_bad_first_line(text: str, told: str) -> None:
    with pytest.raises(SpecError, match=told) as caught:
        parse_measured(text, "m.csv")
    assert COLUMNS[1] in str(caught.value)


def test_the_title_is_the_file_s() -> None:
    text = f"# title: my engine 1.0\n{HEADER}\ndecode,32,46.6,4250,,,48.8,,,\n"
    assert parse_measured(text, "m.csv").title == "my engine 1.0"
