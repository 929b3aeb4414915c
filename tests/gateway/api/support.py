"""A tiny model folder, an application over a fake backend, and ways to drive it."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from serving.gateway.api.admin.pool_admin import PoolAdmin
from serving.gateway.api.app import create_app
from serving.gateway.api.batches.shelf import BatchShelf, batch_shelf_in_memory
from serving.gateway.api.hints.desk import KvHints
from serving.gateway.api.hints.pauses import PauseDesk
from serving.gateway.api.responses.kept import ResponseStore
from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.gateway.core.pause_times import PauseTimes
from serving.telemetry.metrics import GatewayMetrics
from tests.fakes.backend import FakeBackend, Script, ScriptOf
from tests.fakes.prefix_finder import FakePrefixFinder

SENTENCES = [
    "Once upon a time there was a little dog who lived in a big house.",
    "The dog was happy and played in the garden all day long.",
    "Tell me a story about a cat, a bird and the old tree!",
    "Größe, naïve café, 你好世界, привет, emoji 🙂🚀 end.",
]
SPECIAL = ["<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>"]
BOS, EOS, USER, ASSISTANT = range(4)
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>{{ m.content }}"
    "{% if not loop.last or add_generation_prompt %}{{ eos_token }}{% endif %}"
    "{% else %}<|user|>{{ m.role }}: {{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MAX_MODEL_LEN = 512


def train_tokenizer() -> RawTokenizer:
    """A byte-level BPE of a few hundred tokens that adds `<|bos|>` in front."""
    raw = RawTokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(SENTENCES * 3, trainer)
    raw.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", BOS)])
    return raw


def write_model_folder(folder: Path) -> Path:
    """The files of a checkpoint that the HTTP surface reads."""
    train_tokenizer().save(str(folder / "tokenizer.json"))
    eos = {"__type": "AddedToken", "content": "<|eos|>", "lstrip": False, "rstrip": False, "normalized": False}
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>", "eos_token": eos}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "config.json").write_text(json.dumps({"vocab_size": 400}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS, "temperature": 0.7, "top_k": 20}))
    return folder


class Harness:
    """An application over a fake backend, with the parts that tests inspect."""

    def __init__(
        self,
        model: ServedModel,
        settings: ApiSettings | None = None,
        pool: PoolAdmin | None = None,
        responses: ResponseStore | None = None,
        batches: BatchShelf | None = None,
        hints: KvHints | None = None,
        pauses: PauseTimes | None = None,
    ) -> None:
        self.model = model
        self.script_of: ScriptOf = lambda _: self.say("Once upon a time")
        self.backend = FakeBackend(lambda spec: self.script_of(spec))
        self.metrics = GatewayMetrics(model.names[0], max_model_len=model.max_model_len)
        settings = settings or ApiSettings(version="1.2.3")
        self.batches = batches or batch_shelf_in_memory(settings)
        self.prefixes = FakePrefixFinder()
        more: dict[str, Any] = {
            "responses": responses,
            "batches": self.batches,
            "hints": hints,
            "prefixes": self.prefixes,
        }
        if hints is not None and pauses is not None:
            self.pauses = more["pauses"] = PauseDesk(hints, pauses, self.metrics)
        self.app: FastAPI = create_app(self.backend, model, settings, self.metrics, pool, **more)

    def renewed(self) -> "Harness":
        """The same application with the usual script, and no jobs."""
        self.script_of = lambda _: self.say("Once upon a time")
        self.backend.refuse, self.backend.is_ready = None, True
        self.backend.jobs.clear()
        self.backend.generations.clear()
        return self

    def prompt(self) -> str:
        """The prompt text of the last sequence that the backend received."""
        return self.model.tokenizer.decode(self.backend.jobs[-1].sequences[0].prompt, skip_special_tokens=False)

    def say(self, text: str, *, end: bool = True, **more: Any) -> Script:
        """A script that produces `text` and, with `end`, the end token."""
        ids = self.model.tokenizer.encode(text, add_special_tokens=False)
        return Script((*ids, EOS) if end else tuple(ids), **more)


@contextlib.contextmanager
def running_server(app: FastAPI) -> Iterator[str]:
    """Serve `app` with uvicorn on a free loopback port in a thread; yields the base URL."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off", ws="none", loop="uvloop"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive(), "the server did not start"
                thread.join(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive(), "the server did not stop"


def events(body: str) -> list[Any]:
    """Payloads of a stream's events, including the end mark as a string."""
    lines = [line for line in body.split("\n") if line]
    assert all(line.startswith(("data: ", ":")) for line in lines), lines
    payloads = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [p if p == "[DONE]" else json.loads(p) for p in payloads]


def named_events(body: str) -> list[Any]:
    """Payloads of a stream with named events; asserts that each name equals the payload's `type`."""
    shown = []
    for block in body.split("\n\n")[:-1]:
        name, data = block.split("\n")
        payload = json.loads(data.removeprefix("data: "))
        assert name == f"event: {payload['type']}"
        shown.append(payload)
    return shown


def post(app: FastAPI, path: str, body: Any, **kwargs: Any) -> httpx.Response:
    """One POST in process; `body` as JSON, or raw with `content=`."""
    if body is not None:
        kwargs["json"] = body
    return request(app, "POST", path, **kwargs)


def request(app: FastAPI, method: str, path: str, **kwargs: Any) -> httpx.Response:
    """One request in process, with its own event loop; application errors become responses."""
    return asyncio.run(requested(app, method, path, **kwargs))


async def requested(app: FastAPI, method: str, path: str, **kwargs: Any) -> httpx.Response:
    """`request`, inside a running event loop."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.request(method, path, **kwargs)


def chat(app: FastAPI, **fields: Any) -> httpx.Response:
    """A chat request with sensible defaults."""
    return post(
        app, "/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}
    )


def complete(app: FastAPI, **fields: Any) -> httpx.Response:
    """A completion request with sensible defaults."""
    return post(app, "/v1/completions", {"model": "tiny", "prompt": "The dog", **fields})


def check(
    reply: httpx.Response, status: int, param: str | None = None, code: str | None = None, text: str = ""
) -> None:
    """Check the error object of a response."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    body = reply.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert error["param"] == param
    if code is not None:
        assert error["code"] == code
    assert text in error["message"]


def bearer(key: str | None) -> dict[str, str]:
    """Authorization header for a key."""
    return {} if key is None else {"authorization": f"Bearer {key}"}
