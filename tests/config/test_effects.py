"""Keys without effect are named, with the command and the remedy; keys with an effect are not.

tests/virtual/core/test_key_effects.py shows, key by key, that the table is true in virtual time.
"""

import ast
import dataclasses
import re
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path

import pytest

from serving.cli import command_parser, main
from serving.config.effects import all_keys, check_settings, expand, idle_keys, idle_lines, rounded_lines
from serving.config.inert_rule import SERVE, VIRTUAL, Command
from serving.config.inert_rules import RULES
from serving.config.load import Loaded, load_config, read_config
from serving.errors import ConfigError
from tests.config.toml_file import write

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MADE_FOR: dict[str, tuple[Command, ...]] = {
    "cloudmatrix384": ("simulate", "plan"),
    "cloudmatrix384-autoscaled": ("simulate",),
    "ep320": ("simulate",),
    "transformerless384": ("simulate",),
}
"""Files of another purpose than `serve`."""


def lines(folder: Path, text: str, command: Command, *settings: str, model: str | None = None) -> list[str]:
    """Lines that a command prints for a configuration file."""
    file = write(folder, text) if model is None else write(folder, text, model=model)
    return idle_lines(read_config(file, settings=settings), command)


@pytest.mark.parametrize(
    "file", [*DEPLOY.glob("*.toml"), *(DEPLOY / "chaos").glob("two-*.toml")], ids=lambda file: file.stem
)
def test_every_key_of_a_shipped_file_works_where_the_file_is_meant_for(file: Path) -> None:
    for command in MADE_FOR.get(file.stem, ("serve",)):
        assert [*idle_lines(read_config(file), command), *rounded_lines(read_config(file), command)] == []


@pytest.mark.parametrize("command", ["serve", "simulate", "plan"])
def test_the_setting_that_a_help_shows_works_in_that_command(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command_parser().parse_args([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    shown = re.findall(r"(?:--set |e\.g\. )([a-z_]+\.[a-z_]+=[\w.]+)", text)
    assert shown
    file = DEPLOY / ("small.toml" if command == "serve" else "cloudmatrix384.toml")
    assert idle_lines(read_config(file, settings=shown), command) == []


TWO_RANKS = "[decode]\nep = 2\nnpus_per_instance = 1\nub_memory_mib = 256\n"
PARTS = '[autoscaler]\npolicy = "slo"\ndecode_step_npus = 1\nmin_decode_npus = 2\nmax_decode_npus = 4\n'
SIMULATED = '[engine]\nexecutor = "simulated"\n[hardware]\nhbm_per_die_mib = 0\n'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            '[autoscaler]\npolicy = "slo"\nrequests_per_instance = 4\n',
            '[autoscaler] requests_per_instance has no effect with [autoscaler] policy = "slo", only with "requests"',
        ),
        (
            '[autoscaler]\npolicy = "requests"\nutilisation = 0.5\nhold_s = 9\nmin_kvcache = 1\n'
            "[kvcache]\nreplicas = 1\n",
            '[autoscaler] utilisation, hold_s, min_kvcache have no effect with [autoscaler] policy = "requests", only'
            ' with "slo"',
        ),
        (
            "[autoscaler]\nperiod_s = 2\nmanual_hold_s = 5\n",
            '[autoscaler] period_s, manual_hold_s have no effect with [autoscaler] policy = "none", only with "slo" or'
            ' "requests"',
        ),
        (
            '[autoscaler]\npolicy = "slo"\nidle_to_zero_s = 9\n',
            "[autoscaler] idle_to_zero_s has no effect unless a pool may go to zero: set one of [autoscaler]"
            " min_prefill, min_decode, min_kvcache to 0",
        ),
        (
            PARTS,
            "[autoscaler] decode_step_npus, min_decode_npus, max_decode_npus have no effect in a system that runs,"
            " unless [decode] ep is above 1: there an instance is one process, which keeps its size; only groups of"
            " ranks, and instances in virtual time (`cloudmatrix simulate`), grow and shrink",
        ),
        (
            PARTS + "max_decode = 3\n" + TWO_RANKS,
            "[autoscaler] max_decode has no effect with [autoscaler] decode_step_npus: as many groups of ranks as there"
            " are change their size",
        ),
        (
            '[autoscaler]\npolicy = "slo"\nmax_decode_npus = 4\n' + TWO_RANKS,
            "[autoscaler] max_decode_npus has no effect with [autoscaler] decode_step_npus = 0: groups of ranks change"
            " their size by `cloudmatrix experts resize`",
        ),
        (
            "[experts]\nredundant = 1\n",
            "[experts] redundant has no effect where no instance has several ranks: the experts of a single process are"
            " all at hand",
        ),
        (
            '[experts]\nshared = "experts"\n' + TWO_RANKS,
            "[experts] shared has no effect where no instance has attention_ranks and expert_ranks: ranks of ep compute"
            " shared experts for their own rows",
        ),
        (
            '[experts]\npolicy = "none"\nmin_gain = 0.1\n' + TWO_RANKS,
            '[experts] min_gain has no effect with [experts] policy = "none": only operators move experts then,'
            " whatever the gain",
        ),
        (
            '[experts]\nslots = "mapped"\nmove_mib_per_s = 9\n' + TWO_RANKS,
            '[experts] move_mib_per_s has no effect with [experts] slots = "mapped": slots point to the weights,'
            " nothing is copied",
        ),
        (
            "[simulation]\nseed = 4\ntime_scale = 0.5\n",
            '[simulation] time_scale, seed have no effect without [engine] executor = "simulated", only with it and in'
            " virtual time (`cloudmatrix simulate`)",
        ),
        (
            SIMULATED + "[simulation]\ngateway_s = 0.1\ntime_scale = 0.5\n",
            "[simulation] gateway_s has no effect in a system that runs, only in virtual time (`cloudmatrix simulate`)",
        ),
        (
            SIMULATED + "[simulation]\nspike_factor = 2\n",
            "[simulation] spike_factor has no effect with [simulation] spike_share = 0: no step is hit by a spike",
        ),
        (
            '[serving]\nmode = "aggregated"\n[prefill]\nreplicas = 1\n[engine]\nempty_role_s = 1\n',
            '[engine] empty_role_s and [prefill] replicas have no effect with [serving] mode = "aggregated", where one'
            " pool does both, [aggregated]",
        ),
        (
            '[engine]\ndrafts = "lookup"\ndraft_tokens = 2\n',
            '[engine] draft_tokens has no effect with [engine] drafts = "lookup", only with "layer"',
        ),
        (
            "[engine]\nlookup_tokens = 4\n",
            '[engine] lookup_tokens has no effect with [engine] drafts = "layer", only with "lookup"',
        ),
        (
            "[aggregated]\nreplicas = 2\n",
            '[aggregated] replicas has no effect with [serving] mode = "disaggregated", only with "aggregated"',
        ),
        (
            '[gateway]\nserver = "serve"\nmax_connections = 9\nmax_body_bytes = 2000\n',
            '[gateway] max_connections has no effect with [gateway] server = "serve", only with "uvicorn": connections'
            " are those of Ray Serve's proxy",
        ),
        (
            '[kvcache]\neviction = "lfu"\n[[namespaces]]\nname = "acme"\nquota_mib = 3\n',
            "[kvcache] eviction has no effect with [kvcache] replicas = 0: there is no KV-cache pool",
        ),
        (
            "[kvcache]\nreplicas = 1\nhigh_water = 0.9\n",
            "[kvcache] high_water has no effect with [kvcache] ssd_mib = 0: there is no SSD tier for blocks to leave"
            " for",
        ),
        ("[chaos]\nleast_step_s = 1\n", "[chaos] least_step_s has no effect without [chaos] enabled = true"),
        ('[kv_events]\nform = "array"\n', "[kv_events] form has no effect without [kv_events] enabled = true"),
        (
            "[health]\nprobe_period_s = 0\nprobe_late_s = 0.1\n",
            "[health] probe_late_s has no effect with [health] probe_period_s = 0: nothing is probed",
        ),
    ],
)
def test_a_line_names_keys_and_the_way_out(tmp_path: Path, text: str, line: str) -> None:
    assert line in lines(tmp_path, text, "serve")
    assert len(lines(tmp_path, text, "serve")) == (2 if "quota_mib" in text else 1)


def test_what_belongs_to_systems_that_run_is_named_in_virtual_time(tmp_path: Path) -> None:
    text = "[gateway]\nport = 9000\n[health]\nlink_misses = 3\n"
    text += '[[namespaces]]\nname = "acme"\n[[cluster.nodes]]\ncpus = 2\n'
    assert lines(tmp_path, text, "simulate") == [
        "[gateway] port and [[cluster.nodes]] cpus and [health] link_misses and [[namespaces]] name have no effect in"
        " virtual time, only in a system that runs (`cloudmatrix serve`)"
    ]
    assert lines(tmp_path, "", "simulate", "engine.draft_tokens=3") == [
        "[engine] draft_tokens has no effect in virtual time: there [simulation] drafts says how many tokens a step"
        " guesses"
    ]


def test_only_what_was_set_is_named(tmp_path: Path) -> None:
    assert lines(tmp_path, "", "simulate") == lines(tmp_path, "", "serve") == lines(tmp_path, "", "plan") == []
    assert lines(tmp_path, "", "serve", "simulation.seed=3") != []


def test_a_plan_takes_pools_from_a_file_as_they_are_but_not_from_a_setting(tmp_path: Path) -> None:
    text = "[prefill]\nreplicas = 2\n"
    assert lines(tmp_path, text, "plan") == []
    assert (
        "[prefill] replicas has no effect in `cloudmatrix plan`" in lines(tmp_path, "", "plan", "prefill.replicas=2")[0]
    )


LOAD = ("--poisson", "2", "--duration", "2", "--prompt", "100", "--output", "4", "--quiet", "--json")


def test_a_command_says_it_on_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = DEPLOY / "models" / "deepseek-r1-shape"
    text = (DEPLOY / "cloudmatrix384.toml").read_text().replace("[engine]\n", "[engine]\ndraft_tokens = 3\n")
    file = tmp_path / "topology.toml"
    file.write_text(text.replace("models/deepseek-r1-shape", str(shape)))
    assert main(["simulate", "--config", str(file), *LOAD]) == 0
    told = capsys.readouterr()
    assert told.err.startswith("cloudmatrix: [engine] draft_tokens has no effect in virtual time")
    assert told.out.startswith("{")


@pytest.mark.parametrize("flags", [("simulate", *LOAD), ("plan", "--trace", "none.jsonl")], ids=["simulate", "plan"])
def test_a_setting_without_effect_in_virtual_time_is_refused_by_name(
    flags: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(DEPLOY / "cloudmatrix384.toml")
    assert main([*flags, "--config", file, "--set", "engine.draft_tokens=3", "--set", "health.node_misses=2"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert "--set: [engine] draft_tokens has no effect in virtual time: there [simulation] drafts says how" in told.err
    assert "; [health] node_misses has no effect in virtual time, only in a system that runs" in told.err


def test_every_key_that_a_command_ignores_is_refused_as_a_setting() -> None:
    shipped = read_config(DEPLOY / "cloudmatrix384.toml")
    for command in VIRTUAL:
        idle = idle_keys(shipped.config, command)

        def asked(keys: Collection[str]) -> Loaded:
            return dataclasses.replace(shipped, given=shipped.given | set(keys), by_setting=frozenset(keys))

        check_settings(asked([key for key in all_keys() if key not in idle]), command)
        for key in [*idle][::7]:
            with pytest.raises(ConfigError, match=re.escape(idle[key].why)):
                check_settings(asked([key]), command)
        with pytest.raises(ConfigError) as caught:
            check_settings(asked(idle), command)
        assert all(rule.why in str(caught.value) for rule in idle.values())
    for command in SERVE:
        check_settings(dataclasses.replace(shipped, by_setting=frozenset({"simulation.gateway_s"})), command)


def test_rules_name_keys_that_there_are() -> None:
    for rule in RULES:
        assert expand(rule.keys)
    with pytest.raises(KeyError, match=r"engine\.nothing"):
        expand(["engine.nothing"])


def test_what_no_code_of_a_running_system_reads_is_listed_for_it() -> None:
    apart = {"virtual", "tools", "cli", "inert_rules.py", "inert_rule.py"}
    paths = [path for path in (ROOT / "serving").rglob("*.py") if not apart & {*path.relative_to(ROOT).parts}]
    read = frozenset().union(*map(_names_read, paths))
    simulated = load_config(DEPLOY / "cloudmatrix384-live.toml")
    never = set(idle_keys(simulated, "serve")) & set(idle_keys(load_config(DEPLOY / "small.toml"), "serve"))
    assert {"simulation.supernodes", "simulation.gateway_s", "simulation.model_load"} <= never
    assert [key for key in all_keys() if key not in never and key.rpartition(".")[2] not in read] == []
    for name in ("supernodes", "gateway_s", "model_load"):
        assert name not in read


@pytest.mark.parametrize(
    ("names", "files"),
    [
        (
            ("max_head_bytes", "head_timeout_s", "body_timeout_s", "address_share"),
            {f"gateway/live/{name}.py" for name in ("gateway_http_server", "connections", "http_protocol")},
        ),
        (
            ("short_weights", "workspace_share"),
            {
                *(f"instance/live/compute_{name}.py" for name in ("model", "native", "torch")),
                *("group/compute/expert_rank.py", "launch/machine.py"),
            },
        ),
        (("least_step_s",), {"instance/live/faulty_ports.py"}),
        (("kv_shrink", "output_tokens"), {"simulated_cost.py", "instance/live/compute_simulated.py"}),
    ],
)
def test_keys_of_a_part_are_read_by_that_part_alone(names: Sequence[str], files: set[str]) -> None:
    skipped = ("virtual", "tools", "cli", "config", "fingerprint.py")
    for path in (ROOT / "serving").rglob("*.py"):
        relative = path.relative_to(ROOT / "serving")
        if not set(relative.parts) & set(skipped) and _names_read(path) & set(names):
            assert str(relative) in files


@cache
def _names_read(path: Path) -> frozenset[str]:
    """Names of attributes that a file reads."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))


@pytest.mark.parametrize(
    ("command", "settings", "lines"),
    [
        ("simulate", ["decode.max_sequences=6"], ["[decode] max_sequences = 6 acts as 320: 1 for each of 320 dies"]),
        (
            "simulate",
            ["decode.max_step_tokens=700", "decode.max_sequences=640", "simulation.decode_attention_tp=4"],
            ["[decode] max_step_tokens = 700 acts as 640: 8 for each of 80 groups of dies"],
        ),
        (
            "plan",
            ["prefill.max_step_tokens=2001", "decode.max_sequences=700"],
            [
                "[decode] max_sequences = 700 acts as 640: 2 for each of 320 dies",
                "[prefill] max_step_tokens = 2,001 acts as 2,000: 125 for each of 16 NPUs",
            ],
        ),
        ("serve", ["decode.max_sequences=6"], []),
        ("simulate", [], []),
    ],
)  # fmt: skip
def test_limits_that_dies_cannot_share_are_said(command: Command, settings: list[str], lines: list[str]) -> None:
    assert rounded_lines(read_config(DEPLOY / "cloudmatrix384.toml", settings=settings), command) == lines
