"""A chat template is foreign code: the server survives whatever it does, and its process is ended or replaced."""

import asyncio
import contextlib
import gc
import marshal
import os
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from serving.errors import InvalidRequestError, ModelError, OverloadedError
from serving.gateway.api.settings import ServedModel
from serving.gateway.api.templates import template_pool
from serving.gateway.api.templates.chat_template import SHORT_BYTES, ChatTemplate
from serving.gateway.api.templates.template_pool import LONG_BYTES, TemplatePool
from tests.gateway.api.client import until
from tests.gateway.api.rendering import render
from tests.gateway.api.support import Harness, request

STORYTELLER = Path(__file__).parents[3] / "deploy" / "models" / "storyteller"

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a process that the kernel kills takes its time to end."""
    monkeypatch.setattr(template_pool, "LAST_BREATH_S", 60.0)


MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi 🙂 \udfff"}]}
FRAME = marshal.dumps(MESSAGES)
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}BODY{% endfor %}{% endfor %}"
HOSTILE = {
    "silent loops": (LOOPS.replace("BODY", ""), "too much time"),
    "endless text": (LOOPS.replace("BODY", "{{ 'x' * 1000 }}"), "more than .* characters"),
    "a long text": (
        "{% set x = messages[0].content * 10000000 %}{{ x }}",
        "more than .* characters|too much (memory|time)",
    ),
    "much memory": ("{% set x = messages[0].content * 10000000000 %}", "too much memory"),
    "a huge number": ("{% set n = messages | length + 9 %}{{ n ** (n ** n) }}", "too much time|memory|refused"),
    "a wide field": ("{{ '%2000000000d' % (messages | length) }}", "too much memory|characters"),
    "nested lists": (
        "{% set ns = namespace(x=messages) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
        "{{ ns.x | string | length }}",
        "too much (time|memory)",
    ),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    "doubling": (
        "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "too much (time|memory)|characters",
    ),
}
FOLDED = {
    "a number": "{{ 9 ** (9 ** 9) }}",
    "a text": "{{ 'x' * 10000000000 }}",
    "a wide field": "{{ '%20000000000d' % 1 }}",
}


def run(scene: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(scene)


def children() -> set[int]:
    """Template processes of this process, including those of other tests."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended since
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return {pid for pid in found if b"template_process" in command_of(pid)}


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def gone(pid: int) -> bool:
    """Whether a process has ended; a zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def pids(pool: TemplatePool) -> list[int]:
    return [renderer.pid for renderer in pool._idle]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_template_that_takes_too_much_is_refused(name: str) -> None:
    source, reason = HOSTILE[name]

    async def scene() -> float:
        pool = TemplatePool(source, cpu_s=0.05)
        await pool.warm()
        with pytest.raises(InvalidRequestError, match=f"^the chat template refused the messages: .*({reason})"):
            await pool.render(FRAME)
        begun = time.process_time()
        pool.close()
        return time.process_time() - begun

    assert run(scene()) < 5


@pytest.mark.parametrize("name", FOLDED)
def test_constants_are_not_computed_in_this_process(name: str) -> None:
    """Jinja2 folds constants when it compiles; parsing a template must not."""
    begun = time.process_time()
    template = ChatTemplate(FOLDED[name], {})
    assert time.process_time() - begun < 1
    template._pool = TemplatePool(FOLDED[name], cpu_s=0.15)
    with pytest.raises((ModelError, InvalidRequestError)):
        run(_warm_and_render(template))


async def _warm_and_render(template: ChatTemplate) -> None:
    await template.warm()
    await template.render(template.prepare([{"role": "user", "content": "x"}]))


@pytest.mark.parametrize("source", ["{{ messages | nofilter }}", "{% if messages is nothing %}{% endif %}", "{% if %}"])
def test_what_does_not_compile_is_told_when_it_is_read(source: str) -> None:
    with pytest.raises(ModelError, match="the chat template does not parse: "):
        ChatTemplate(source, {})


def test_texts_are_as_if_rendered_here(served: ServedModel) -> None:
    template = served.chat_template
    assert template is not None

    async def scene() -> None:
        for content in ("", "Hi <b> ü 🙂 你", "x" * (2 * LONG_BYTES), *("<|user|>" * i for i in range(5))):
            messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "yes"}]
            options: dict[str, Any] = {"control": served.control_tokens}
            text = await template.render(template.prepare(messages, **options))
            assert text == render(template, messages, **options)

    run(scene())
    run(scene())  # in another event loop


@pytest.mark.asyncio
async def test_our_own_templates_are_spared_the_way_while_a_conversation_is_short() -> None:
    """They give the same text, or refusal, in this process."""
    model = ServedModel.from_folder(STORYTELLER, names=("tiny",), max_model_len=64, created=1)
    template = model.chat_template
    assert template is not None
    here = template._here
    assert here is not None
    for content in ("Hi", "x" * SHORT_BYTES):
        job = template.prepare([{"role": "user", "content": content}], control=model.control_tokens)
        assert await template.render(job) == here.render(marshal.loads(job.frame), 1 << 30)
        assert len(pids(template._pool)) == (0 if content == "Hi" else 1)
    job = template.prepare([{"role": "wizard", "content": "Hi"}], control=model.control_tokens)
    for place in (here, None):
        template._here = place
        with pytest.raises(InvalidRequestError, match="the messages: role must be system"):
            await template.render(job)
    template.close()


@pytest.mark.asyncio
async def test_one_process_does_for_all_and_is_replaced_when_it_is_lost() -> None:
    pool = TemplatePool("{{ messages[0].content }}")
    await pool.warm()
    (first,) = pids(pool)
    texts = [await pool.render(FRAME) for _ in range(20)]
    assert texts == [MESSAGES["messages"][0]["content"]] * 20
    assert pids(pool) == [first]
    os.kill(first, signal.SIGKILL)
    assert await pool.render(FRAME) == texts[0]
    (second,) = pids(pool)
    assert second != first
    pool.close()
    assert gone(first)
    assert gone(second)


@pytest.mark.asyncio
async def test_a_long_conversation_has_a_process_of_its_own() -> None:
    """Its memory is freed with it, and the process for short conversations stays available."""
    pool = TemplatePool("{{ messages[0].content }}")
    await pool.warm()
    (ready,) = pids(pool)
    os.kill(ready, signal.SIGSTOP)
    long = marshal.dumps({"messages": [{"content": "x" * LONG_BYTES}]})
    assert len(await pool.render(long)) == LONG_BYTES
    assert pids(pool) == [ready]
    os.kill(ready, signal.SIGCONT)
    pool.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [1, 8 << 20])
async def test_nothing_stays_of_an_answer_that_nobody_waits_for(size: int) -> None:
    """Cancelled while the request is written, or while its response is awaited."""
    pool = TemplatePool("{{ messages[0].content }}")
    await pool.warm()
    renderer = pool._idle.pop()
    os.kill(renderer.pid, signal.SIGSTOP)
    answer = asyncio.create_task(pool._answer(renderer, marshal.dumps({"messages": [{"content": "x" * size}]})))
    done, _ = await asyncio.wait([answer], timeout=0.05)
    assert not done
    answer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answer
    await until(lambda: gone(renderer.pid))


@pytest.mark.asyncio
async def test_a_start_that_nobody_waits_for_is_ended() -> None:
    before = children()
    pool = TemplatePool("x")
    warming = asyncio.create_task(pool.warm())
    await until(lambda: bool(children() - before))
    (pid,) = children() - before
    warming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await warming
    await until(lambda: gone(pid))
    assert pids(pool) == []


@pytest.mark.parametrize("busy", [False, True])
def test_a_process_ends_when_its_server_is_killed(busy: bool) -> None:
    body = LOOPS.replace("BODY", "") if busy else "x"
    program = (
        "import asyncio\n"
        "from serving.gateway.api.templates.template_pool import TemplatePool\n"
        "async def scene():\n"
        f"    pool = TemplatePool({body!r}, cpu_s=0.15)\n"
        "    await pool.warm()\n"
        "    print(pool._idle[0].pid, flush=True)\n"
        f"    await (pool.render({FRAME!r}) if {busy} else asyncio.Event().wait())\n"
        "asyncio.run(scene())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        server.kill()
    run(until(lambda: gone(pid)))


def test_a_process_ends_with_what_it_was_for() -> None:
    pool = TemplatePool("x")
    run(pool.warm())
    (pid,) = pids(pool)
    del pool
    gc.collect()
    assert gone(pid)


@pytest.mark.asyncio
async def test_a_few_at_a_time_and_a_bounded_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_pool, "MOST_WAITING", 3)
    most = template_pool.ORDINARY_PROCESSES
    before = children()
    pool = TemplatePool(LOOPS.replace("BODY", ""), cpu_s=0.2)
    asked = [asyncio.create_task(pool.render(FRAME)) for _ in range(most + 4)]
    await until(lambda: any(task.done() for task in asked))
    refused = [task for task in asked if task.done()]
    assert len(refused) == 1
    with pytest.raises(OverloadedError):
        await refused[0]
    for task in asked[:1] + asked[-3:-1]:  # some that run and some that wait
        task.cancel()
    results = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(one) for one in results} == {asyncio.CancelledError, InvalidRequestError, OverloadedError}
    assert pool._ordinary.state == (most, 0, 0)
    pool.close()
    await until(lambda: children() <= before)


def test_others_go_on_while_a_template_computes(model_folder: Path, tmp_path: Path) -> None:
    """The server's loop stays free, and the response is an error object."""
    folder = tmp_path / "model"
    folder.mkdir()
    for path in model_folder.iterdir():
        if path.is_file() and path.name != "chat_template.jinja":
            (folder / path.name).write_bytes(path.read_bytes())
    (folder / "chat_template.jinja").write_text(LOOPS.replace("BODY", ""))
    model = ServedModel.from_folder(folder, names=("tiny",), max_model_len=64, created=1)
    assert model.chat_template is not None
    model.chat_template._pool = TemplatePool(model.chat_template.source, cpu_s=0.2)
    harness = Harness(model)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
    for route in ("/v1/chat/completions", "/tokenize"):
        reply = request(harness.app, "POST", route, json=body)
        assert reply.status_code == 400
        error = reply.json()["error"]
        assert (error["param"], error["type"]) == ("messages", "invalid_request_error")
        assert "it takes too much time" in error["message"]
    model.chat_template.close()
