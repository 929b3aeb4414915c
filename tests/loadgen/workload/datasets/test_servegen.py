"""ServeGen windows: rates that hold on average however bursty, families, lengths, merging, choosing."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from loadgen.errors import TraceFormatError, UsageError
from loadgen.plan import Conversation
from loadgen.workload.datasets import Fit, ServeGen
from loadgen.workload.datasets.servegen import stationary_times
from loadgen.workload.datasets.servegen_files import Family, histogram, read_clients
from loadgen.workload.words import Words

_RNG = np.random.default_rng


def _client(folder: Path, number: int, rows: list[str], lengths: dict[str, dict[str, str]] | None = None) -> None:
    (folder / f"chunk-{number}-trace.csv").write_text("\n".join(rows) + "\n")
    lengths = lengths or {"0": {"input_tokens": "{64: 0.5, 128: 0.5}", "output_tokens": "{32: 1.0}"}}
    (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(lengths))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    _client(tmp_path, 0, ["0,2.0,1.0,Gamma,1.0,0.5", "600,0,0,,0,0", "1200,1.0,2.0,Weibull,0.5,0.5"])
    _client(tmp_path, 7, ["0,0,0,,0,0", "600,3.0,1.0,Gamma,1.0,9.9", "1200,0,0,,0,0"])
    return tmp_path


def _read(workload: ServeGen, seed: int = 0) -> list[Conversation]:
    return list(workload.conversations(_RNG(seed)))


def _arrivals(conversations: list[Conversation]) -> list[float]:
    return [conversation.arrival_s or 0.0 for conversation in conversations]


@pytest.mark.parametrize(
    ("family", "shape", "cv"),
    [
        (Family.GAMMA, 4.0, 0.5),
        (Family.GAMMA, 0.1, math.sqrt(10)),
        (Family.WEIBULL, 1.0, 1.0),
        (Family.WEIBULL, 0.5, math.sqrt(5)),
    ],
)
def test_as_many_events_as_the_rate_says_however_bursty(family: Family, shape: float, cv: float) -> None:
    """A process that began with a whole gap would have (CV^2 - 1)/2 too many: 4.5 of 30 in the worst case here."""
    rng = _RNG(1)
    counts = [len(stationary_times(family, shape, 30.0, rng)) for _ in range(4000)]
    error = cv * math.sqrt(30 / 4000)  # the variance of a count is about CV^2 x its mean
    assert abs(np.mean(counts) - 30) < 4 * error < 1.2


@pytest.mark.parametrize(("family", "shape"), [(Family.GAMMA, 0.25), (Family.WEIBULL, 0.7)])
def test_gaps_have_the_family_s_spread(family: Family, shape: float) -> None:
    times = stationary_times(family, shape, 50_000.0, _RNG(2))
    gaps = np.diff(times)
    moment = math.gamma(1 + 2 / shape) / math.gamma(1 + 1 / shape) ** 2
    expected = math.sqrt(1 / shape if family is Family.GAMMA else moment - 1)
    assert gaps.std() / gaps.mean() == pytest.approx(expected, rel=0.05)
    assert np.all(gaps >= 0)


def test_clients_are_merged_in_order_of_time(folder: Path, words: Words) -> None:
    conversations = _read(ServeGen(folder, words))
    arrivals = _arrivals(conversations)
    assert arrivals == sorted(arrivals)
    counts = {tenant: sum(one.tenant == tenant for one in conversations) for tenant in ("client-0", "client-7")}
    assert counts["client-7"] == pytest.approx(1800, abs=4 * math.sqrt(1800))
    assert counts["client-0"] == pytest.approx(1800, abs=4 * math.sqrt(1200 + 5 * 600))
    assert all(600 <= one.arrival_s < 1200 for one in conversations if one.tenant == "client-7" and one.arrival_s)


def test_a_stretch_of_time_begins_at_zero(folder: Path, words: Words) -> None:
    arrivals = _arrivals(_read(ServeGen(folder, words, from_s=650, to_s=750)))
    assert len(arrivals) == pytest.approx(300, abs=70)
    assert 0 <= arrivals[0] < arrivals[-1] < 100


def test_chosen_clients_and_scaled_rates(folder: Path, words: Words) -> None:
    conversations = _read(ServeGen(folder, words, clients=(7,), rate_scale=0.1))
    assert {conversation.tenant for conversation in conversations} == {"client-7"}
    assert len(conversations) == pytest.approx(180, abs=4 * math.sqrt(180))
    assert all(600 <= arrival < 1200 for arrival in _arrivals(conversations))  # time itself is not scaled


def test_lengths_come_from_the_histograms_and_are_scaled(folder: Path, words: Words) -> None:
    conversations = _read(ServeGen(folder, words, Fit(0.25), to_s=600))
    turns = [conversation.turns[0] for conversation in conversations]
    assert {turn.input_tokens for turn in turns} == {16, 32}
    assert {turn.output_tokens for turn in turns} == {8}
    assert len({str(turn.prompt) for turn in turns}) == len(turns)


def test_equal_seeds_give_equal_requests(folder: Path, words: Words) -> None:
    workload = ServeGen(folder, words, to_s=60)
    assert _read(workload, 3) == _read(workload, 3) != _read(workload, 4)


def test_lengths_hold_until_the_next_window_that_has_some(tmp_path: Path) -> None:
    lengths = {
        "0": {"input_tokens": "{}", "output_tokens": "{}"},
        "600": {"input_tokens": "{5: 1.0}", "output_tokens": "{1: 1.0}"},
        "1200": {"input_tokens": "{}", "output_tokens": "{}"},
        "1800": {"input_tokens": "{6: 1.0}", "output_tokens": "{1: 1.0}"},
    }
    _client(tmp_path, 1, ["0,1.0,1.0,Gamma,1.0,1.0"], lengths)
    [client], _ = read_clients(tmp_path)
    found = [client.lengths(at_s)[0].values for at_s in (0.0, 700.0, 1300.0, 1800.0, 9999.0)]
    assert found == [(5.0,), (5.0,), (5.0,), (6.0,), (6.0,)]


def test_histograms_may_be_text_or_mappings() -> None:
    assert histogram("{35: 0.25, 36: 0.75}") == histogram({"35": 0.25, "36": 0.75})
    assert histogram("{35: 0.25, 36: 0.75}").values == (35.0, 36.0)


def test_window_length_is_that_of_the_files(folder: Path) -> None:
    assert read_clients(folder)[1] == 600.0


@pytest.mark.parametrize(
    "row",
    ["0,1.0,1.0,Pareto,1.0,1.0", "0,1.0", "x,1.0,1.0,Gamma,1.0,1.0", "0,1.0,1.0,Gamma,0,1.0", "0,1.0,1,Gamma,nan,1"],
)
def test_a_window_that_is_none_is_named(tmp_path: Path, row: str) -> None:
    _client(tmp_path, 1, ["0,0,0,,0,0", row])
    with pytest.raises(TraceFormatError, match=r"chunk-1-trace\.csv:2: "):
        read_clients(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["nonsense", "{}", '{"0": {"text_tokens": "{}"}}', '{"0": {"input_tokens": "{a: 1}", "output_tokens": "{}"}}'],
)
def test_lengths_that_are_none_name_their_file(tmp_path: Path, words: Words, text: str) -> None:
    _client(tmp_path, 1, ["0,1.0,1.0,Gamma,1.0,1.0"])
    (tmp_path / "chunk-1-dataset.json").write_text(text)
    with pytest.raises(TraceFormatError, match=r"chunk-1-dataset\.json"):
        _read(ServeGen(tmp_path, words))


def test_files_that_are_missing(tmp_path: Path, folder: Path, words: Words) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_clients(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="no client 3"):
        read_clients(folder, [3])
    (folder / "chunk-7-dataset.json").unlink()
    with pytest.raises(UsageError, match=r"chunk-7-dataset\.json"):
        _read(ServeGen(folder, words))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"chunk-N-trace\.csv"):
        read_clients(tmp_path / "empty")


def test_values_that_make_no_sense(folder: Path, words: Words) -> None:
    with pytest.raises(UsageError, match="rate scale"):
        ServeGen(folder, words, rate_scale=0)
    with pytest.raises(UsageError, match="no stretch"):
        ServeGen(folder, words, from_s=5, to_s=5)
    with pytest.raises(UsageError, match="asks anything"):
        _read(ServeGen(folder, words, from_s=5000))
