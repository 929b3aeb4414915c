"""Claude Code's billing line changes with every request: it is removed from prompts, and all other text is kept."""

from typing import Any

import pytest

from tests.gateway.api.support import Harness, post

LINE = "x-anthropic-billing-header: cc_version=2.1.332.a1b; cc_entrypoint=cli; cch={nonce};"
HI = {"role": "user", "content": "hi"}


def block(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def bodies(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Requests of every route and form with this text as instructions."""
    chat: list[dict[str, Any]] = [
        {"messages": [{"role": role, "content": text}, HI]} for role in ("system", "developer")
    ]
    chat += [{"messages": [{"role": "system", "content": [block(text)]}, HI]}]
    chat += [{"messages": [HI, {"role": "system", "content": text}]}]
    messages: list[dict[str, Any]] = [{"messages": [HI], "system": system} for system in (text, [block(text)])]
    messages += [{"messages": [HI, {"role": "system", "content": content}]} for content in (text, [block(text)])]
    items = [{"role": role, "content": text} for role in ("system", "developer")]
    responses: list[dict[str, Any]] = [
        {"instructions": text, "input": "hi"},
        *({"input": [item, HI]} for item in items),
    ]
    return [
        *(("/v1/chat/completions", body) for body in chat),
        *(("/v1/messages", {"max_tokens": 5, **body}) for body in messages),
        *(("/v1/responses", body) for body in responses),
    ]


def prompts(harness: Harness, text: str) -> list[str]:
    for path, body in bodies(text):
        reply = post(harness.app, path, body)
        assert reply.status_code == 200, (path, reply.text)
    found = [job.sequences[0].prompt for job in harness.backend.jobs]
    harness.backend.jobs.clear()
    return [harness.model.tokenizer.decode(ids, skip_special_tokens=False) for ids in found]


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (LINE + "\nBe brief.", "Be brief."),
        (LINE + "\r\nBe brief.\n", "Be brief.\n"),
        (LINE + "Be brief.", "Be brief."),
        (LINE + " Be brief; be=kind.", "Be brief; be=kind."),
        ("  \t" + LINE + "\n\nBe brief.", "\nBe brief."),
        ("\N{ZERO WIDTH NO-BREAK SPACE}" + LINE + "\nBe brief.", "Be brief."),
        ("You are a dog.\n" + LINE + "\nBe brief.", "You are a dog.\nBe brief."),
        ("You are a dog.\nBe brief.\n" + LINE, "You are a dog.\nBe brief.\n"),
        ("You are a dog. " + LINE + "\nBe brief.", "You are a dog. \nBe brief."),
        ("x-anthropic-billing-header: {nonce}\nBe brief.", "Be brief."),
        ("x-anthropic-billing-header: cch={nonce}\nBe brief.", "Be brief."),
        ("Send an x-anthropic-billing-header: it is {nonce}.", None),
    ],
)
def test_that_line_only_is_taken_off(harness: Harness, given: str, left: str | None) -> None:
    first, second = (prompts(harness, given.replace("{nonce}", nonce)) for nonce in ("a1", "b2"))
    if left is None:
        assert all(a != b for a, b in zip(first, second, strict=True))
    else:
        assert first == second == prompts(harness, left)


def test_the_line_alone_is_no_message(harness: Harness) -> None:
    for path, body in bodies(LINE):
        assert post(harness.app, path, body).status_code == 200
    post(harness.app, "/v1/chat/completions", {"messages": [HI]})
    *found, bare = (job.sequences[0].prompt for job in harness.backend.jobs)
    assert set(found) == {bare}


def test_a_block_of_its_own_leaves_no_trace(harness: Harness) -> None:
    others = [block("You are a dog."), block("Be brief.")]
    for system in ([block(LINE), *others], [others[0], block(LINE), others[1]], others):
        post(harness.app, "/v1/messages", {"max_tokens": 5, "messages": [HI], "system": system})
        counted = {"messages": [HI], "system": system}
        assert post(harness.app, "/v1/messages/count_tokens", counted).json() == {
            "input_tokens": len(harness.backend.jobs[-1].sequences[0].prompt)
        }
    assert len({job.sequences[0].prompt for job in harness.backend.jobs}) == 1


def test_what_others_say_of_it_stays(harness: Harness) -> None:
    said = {"role": "user", "content": LINE}
    post(harness.app, "/v1/chat/completions", {"messages": [said]})
    prompt = harness.backend.jobs[-1].sequences[0].prompt
    assert "billing" in harness.model.tokenizer.decode(prompt, skip_special_tokens=False)
