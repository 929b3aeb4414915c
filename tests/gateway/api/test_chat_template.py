"""Parity with `transformers`, which defines the convention."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from serving.errors import InvalidRequestError, ModelError
from serving.gateway.api.templates.chat_template import ChatTemplate, load_chat_template
from serving.gateway.api.templates.template_process import TextTemplate
from tests.gateway.api.rendering import render
from tests.gateway.api.support import TEMPLATE

FILES = {path.stem: path.read_text() for path in (Path(__file__).parent / "templates").glob("*.jinja")}
JSONISH = (
    "{% for m in messages %}{{ m | tojson(indent=2) }}{{ loop.index0 }}"
    "{% if loop.last %}{% break %}{% endif %}{% endfor %}"
)
REASONING = (
    "{% for m in messages %}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% endfor %}"
)
TEMPLATES = {
    "own": TEMPLATE,
    "chatml": FILES["chatml"],
    "deepseek": FILES["deepseek"],
    "json": JSONISH,
    "reasoning": REASONING,
}

CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": 'Be <kind> & "brief".'}, {"role": "user", "content": "  spaces ü 你 \n"}],
    [
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": "B ", "reasoning": "because"},
        {"role": "tool", "content": "ignored", "name": None},
        {"role": "user", "content": "C"},
    ],
]
SPECIAL = {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}


@pytest.fixture(scope="module")
def reference(model_folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(str(model_folder))


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS, ids=["one", "system", "turns"])
@pytest.mark.parametrize("prompt", [True, False])
def test_rendering_equals_transformers(
    reference: PreTrainedTokenizerFast, name: str, chat: list[dict[str, Any]], prompt: bool
) -> None:
    variables: dict[str, Any] = {"enable_thinking": False}
    ours = render(ChatTemplate(TEMPLATES[name], SPECIAL), chat, add_generation_prompt=prompt, variables=variables)
    theirs = reference.apply_chat_template(
        chat, chat_template=TEMPLATES[name], tokenize=False, add_generation_prompt=prompt, **variables
    )
    assert ours == theirs


@pytest.mark.parametrize("name", ["own", "chatml", "deepseek"])
@pytest.mark.parametrize("ending", ["Once upon", "Once upon "])
def test_continuing_equals_transformers(reference: PreTrainedTokenizerFast, name: str, ending: str) -> None:
    chat = [{"role": "user", "content": "Go"}, {"role": "assistant", "content": ending}]
    ours = render(
        ChatTemplate(TEMPLATES[name], SPECIAL), chat, add_generation_prompt=False, continue_final_message=True
    )
    theirs = reference.apply_chat_template(
        chat, chat_template=TEMPLATES[name], tokenize=False, continue_final_message=True
    )
    assert ours == theirs
    assert ours.endswith("Once upon") or ours.endswith("Once upon ")


@pytest.mark.parametrize(
    ("source", "messages"),
    [
        ("{{ raise_exception('no system role') }}", CHATS[0]),
        ("{{ messages[0].content.missing.deeper }}", CHATS[0]),
        ("{{ ''.__class__.__mro__ }}", CHATS[0]),
        ("{{ messages.append(1) }}", CHATS[0]),
        ("{% for i in range(999999999) %}x{% endfor %}", CHATS[0]),
        ("{{ 1 / 0 }}", CHATS[0]),
    ],
)
def test_what_a_template_must_not_do_is_the_requests_error(source: str, messages: list[dict[str, Any]]) -> None:
    with pytest.raises(InvalidRequestError, match="chat template refused"):
        render(ChatTemplate(source, SPECIAL), messages)


def test_messages_are_not_changed() -> None:
    chat = [{"role": "assistant", "content": "x", "name": None}]
    render(ChatTemplate(TEMPLATE, SPECIAL), chat, add_generation_prompt=False, continue_final_message=True)
    assert chat == [{"role": "assistant", "content": "x", "name": None}]


def test_today_is_available_to_templates() -> None:
    assert len(render(ChatTemplate("{{ strftime_now('%Y') }}", {}), CHATS[0])) == 4


def test_impossible_continuations_are_refused() -> None:
    template = ChatTemplate(TEMPLATE, SPECIAL)
    with pytest.raises(InvalidRequestError, match="mutually exclusive"):
        render(template, CHATS[0], continue_final_message=True)
    with pytest.raises(InvalidRequestError, match="final message with text"):
        render(template, [{"role": "user"}], add_generation_prompt=False, continue_final_message=True)
    upper = ChatTemplate("{% for m in messages %}{{ m.content | upper }}{% endfor %}", SPECIAL)
    with pytest.raises(InvalidRequestError, match="changes the final message"):
        render(upper, [{"role": "user", "content": "hi"}], add_generation_prompt=False, continue_final_message=True)


LATE = [
    {"role": "system", "content": "S"}, {"role": "system", "content": "T"}, {"role": "user", "content": "A"},
    {"role": "system", "content": "U"}, {"role": "assistant", "content": "B"}, {"role": "tool", "content": "R"},
    {"role": "system", "content": "V"},
]  # fmt: skip
SPELLED = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}|{% endfor %}"
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}"
    "{% if m.role == 'user' and not loop.first and loop.previtem.role == 'user' %}{{ raise_exception('turns') }}"
    "{% endif %}{% endfor %}"
)
DROPS = SPELLED.replace("{{ m.role", "{% if m.role != 'system' or loop.first %}{{ m.role").replace("|", "|{% endif %}")


@pytest.mark.parametrize("source", [STRICT + SPELLED, DROPS])
def test_late_instructions_reach_models_whose_template_takes_none(source: str) -> None:
    """And the prompt of each turn begins with that of the turn before."""

    def shown(source: str, chat: list[dict[str, Any]]) -> str:
        template = ChatTemplate(source, SPECIAL)
        template._here = TextTemplate(source)  # as our own templates, without a process
        return asyncio.run(template.render(template.prepare(chat)))

    marker = "[system message]\n"
    whole = f"s:S\n\nT|u:A\n\n{marker}U|a:B|t:R|u:{marker}V|"
    assert shown(source, LATE) == whole
    assert whole.startswith(shown(source, LATE[:4]))
    assert shown(SPELLED, LATE) == "s:S|s:T|u:A|s:U|a:B|t:R|s:V|"


def test_variables_cannot_replace_the_messages() -> None:
    template = ChatTemplate("{{ messages | length }}", {})
    assert render(template, CHATS[0], variables={"messages": []}) == "1"


def test_loading_from_the_folder(tmp_path: Path) -> None:
    assert load_chat_template(tmp_path, {}) is None
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "config {{ bos_token }}"}))
    loaded = load_chat_template(tmp_path, SPECIAL)
    assert loaded is not None
    assert render(loaded, []) == "config <|bos|>"
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    config.write_text(json.dumps({"chat_template": named}))
    loaded = load_chat_template(tmp_path, SPECIAL)
    assert loaded is not None
    assert render(loaded, []) == "plain"
    (tmp_path / "chat_template.jinja").write_text("file")
    loaded = load_chat_template(tmp_path, SPECIAL)
    assert loaded is not None
    assert render(loaded, []) == "file"
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ModelError, match="does not parse"):
        load_chat_template(tmp_path, SPECIAL)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe{{ x }}")
    with pytest.raises(ModelError, match=r"cannot read .*chat_template\.jinja"):
        load_chat_template(tmp_path, SPECIAL)


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% for a in b %}" * 25 + "{% endfor %}" * 25,  # Jinja reads it; Python does not compile it
        "{{ a" + ".b" * 300 + " }}",
    ],
)
def test_a_template_too_deep_to_compile_is_refused(source: str) -> None:
    with pytest.raises(ModelError, match=r"the chat template does not (parse|compile)"):
        asyncio.run(ChatTemplate(source, SPECIAL).warm())
