"""Models that call tools and reason: the tiny one's vocabulary with the markers of a family."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as RawTokenizer

from serving.gateway.api.settings import ServedModel
from tests.gateway.api.support import MAX_MODEL_LEN, Harness, write_model_folder

HERMES = (
    "{% if tools %}<|user|>{% for tool in tools %}{{ tool | tojson }}{% endfor %}{{ eos_token }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }}: {{ call.function.arguments | tojson }}"
    "</tool_call>{% endfor %}{{ eos_token }}"
    "{% else %}<|user|>{{ m.role }}: {{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and enable_thinking is false %}"
    "<think></think>{% elif enable_thinking %}<think>{% endif %}{% endif %}"
)
"""Its words of a call are a caller's to see in a prompt: name, and arguments as JSON."""
MARKERS = ("<tool_call>", "</tool_call>", "<think>", "</think>")


def tool_model(
    folder: Path, template: str, markers: tuple[str, ...], max_model_len: int = MAX_MODEL_LEN
) -> ServedModel:
    """A tiny model with this template, and these tokens."""
    write_model_folder(folder)
    raw = RawTokenizer.from_file(str(folder / "tokenizer.json"))
    raw.add_tokens([AddedToken(name, normalized=False, special=False) for name in markers])
    raw.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"vocab_size": raw.get_vocab_size()}))
    (folder / "chat_template.jinja").write_text(template)
    return ServedModel.from_folder(folder, names=("tiny",), max_model_len=max_model_len, created=7)


@pytest.fixture(scope="session")
def hermes(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return tool_model(tmp_path_factory.mktemp("hermes"), HERMES, MARKERS)


@pytest.fixture(scope="session")
def calling_application(hermes: ServedModel) -> Harness:
    return Harness(hermes)


@pytest.fixture
def caller(calling_application: Harness) -> Harness:
    """A model that may call tools, with scripted output."""
    return calling_application.renewed()


@pytest.fixture(scope="session")
def roomy_application(tmp_path_factory: pytest.TempPathFactory) -> Harness:
    return Harness(tool_model(tmp_path_factory.mktemp("roomy"), HERMES, MARKERS, 8192))


@pytest.fixture
def roomy(roomy_application: Harness) -> Harness:
    """The same with enough vocabulary and context for an agent's tools."""
    return roomy_application.renewed()
