"""A model of GLM-4.7-Flash's shape in a typical deployment: INT8, separate prefill and decode, with its draft layer.

Its tokens equal those of one native process without handoffs and draft tokens; it calls tools and reasons in GLM's
form.
"""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from serving.config.serve import ServeConfig
from serving.gateway.api.app import create_app
from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.gateway.live.generation import LiveGeneration
from serving.instance.core.settings import EngineSettings
from serving.telemetry.metrics import GatewayMetrics
from serving.tools.quantize.quantize_run import quantise
from serving.tools.quantize.quantize_settings import Settings
from serving.values.jobs import GenerationJob
from serving.values.sequence import SequenceSpec
from tests.gateway.api.support import requested
from tests.instance.native_engine import run_engine
from tests.instance.native_grammars import matchers_of
from tests.instance.native_pair import BLOCK_TOKENS, native_executor
from tests.live.harness import Start, small_config
from tests.live.workload import VOCAB, varied_asks
from tests.model.random_checkpoint import write_random_checkpoint
from tests.model.random_tokenizer import write_tokenizer
from tests.model.shapes import GLM_FLASH

SAME_AS = "tests/live/test_every_engine.py::test_tokens"
pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600), pytest.mark.nightly(SAME_AS)]

MARKERS = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
TEMPLATE = (
    "<|bos|>{% if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    "<tool_call>{name}<arg_key>{key}</arg_key><arg_value>{value}</arg_value></tool_call>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>"
    "{{ '</think>' if enable_thinking is defined and not enable_thinking else '<think>' }}{% endif %}"
)
"""Like GLM-4.7's: reasoning starts in the prompt, or ends in it."""
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
        "hourly": {"type": "boolean"},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
CALL: dict[str, Any] = {
    "model": "flash",
    "messages": [{"role": "user", "content": "What is the weather in Oslo?"}],
    "tools": [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_tokens": 300,
    "temperature": 0,
    "return_token_ids": True,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint in INT8."""
    plain, folder = (tmp_path_factory.mktemp("flash") / name for name in ("plain", "int8"))
    write_random_checkpoint(plain, **GLM_FLASH)
    write_tokenizer(plain, VOCAB, 1024, markers=MARKERS, template=TEMPLATE)
    quantise(plain, folder, [], Settings(tokens=256, trials=False), lambda *_: None)
    return folder


class Alone:
    """One process with the model, without draft layer, handoff or other instances."""

    def __init__(self, folder: Path) -> None:
        self._executor = native_executor(folder, blocks=1000, max_rows=64, matchers=matchers_of(folder))

    def outputs(self, specs: list[SequenceSpec]) -> list[tuple[int, ...]]:
        """Tokens of sequences that arrive together."""
        settings = EngineSettings(block_tokens=BLOCK_TOKENS, max_step_tokens=64, max_sequences=8, max_waiting=512)
        found, *_ = run_engine(self._executor, settings, 1000, specs, ahead=False)
        return [found[spec.sequence_id] for spec in specs]


def flash_config(folder: Path) -> ServeConfig:
    config = small_config(folder, pool_mib=4, hardware={"hbm_per_die_mib": 32})
    return replace(config, engine=replace(config.engine, executor="native", draft_tokens=2))


async def test_tokens(started: Start, folder: Path) -> None:
    asks = varied_asks(block_tokens=16, step_tokens=64)[:40]
    pools = await started("prefill", "decode", config=flash_config(folder))
    jobs = [pools.job(ask) for ask in asks]
    told = await asyncio.gather(*(pools.ask(ask) for ask in asks))
    specs = [spec for job in jobs for spec in job.sequences]
    alone = Alone(folder).outputs(specs)
    assert [tuple(tokens) for answer in told for tokens in answer.tokens] == alone
    snapshot = pools.of("decode")[0].engine.snapshot(0.0)
    assert snapshot.draft_tokens_total > 50
    assert snapshot.handoffs_in_total > 0
    await pools.audit()


async def test_a_forced_call_follows_its_schema_with_reasoning_before_it_and_without(
    started: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ServedModel.from_folder(folder, names=("flash",), max_model_len=1024, created=7)
    assert model.tool_family is not None
    assert model.tool_family.name == "glm"
    pools = await started("prefill", "decode", config=flash_config(folder))
    specs: list[SequenceSpec] = []
    told: list[tuple[int, ...]] = []
    submit = pools.backend.submit

    def noted(job: GenerationJob) -> LiveGeneration:
        specs.extend(job.sequences)
        return submit(job)

    monkeypatch.setattr(pools.backend, "submit", noted)
    app = create_app(pools.backend, model, ApiSettings(), GatewayMetrics("flash"))
    for more, thinks in (
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"thinking_token_budget": 8}, True),
    ):
        answer = await requested(app, "POST", "/v1/chat/completions", json={**CALL, **more})
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
        told.append(tuple(choice["token_ids"]))
        assert choice["finish_reason"] == "tool_calls"
        assert bool(choice["message"].get("reasoning_content")) == thinks
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "weather"
        jsonschema.validate(json.loads(call["function"]["arguments"]), WEATHER)
    assert told == Alone(folder).outputs(specs)
    await pools.audit()
