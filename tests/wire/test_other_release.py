"""A gateway of this release and an instance of another one: each gets an error with the other's protocol.

The other release is this package in a separate folder, with another number in the file that holds it.
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

import serving
from serving.sockets.secrets import ClusterSecrets
from serving.wire.connection import Connection, connect_proving
from serving.wire.messages import LINK_CHANNEL, PROTOCOL
from tests.live.harness import until

pytestmark = pytest.mark.asyncio

ROOT = Path(serving.__file__).resolve().parents[1]
SERVER = """
import asyncio
from serving.sockets.secrets import ClusterSecrets
from serving.wire import messages
from serving.wire.connection import Connection, verifier_of
from serving.wire.connection import Listener

def make():
    connection = Connection(lambda *_: None, lambda *_: None)
    connection.verify(verifier_of(messages.LINK_CHANNEL, ClusterSecrets(("secret",))), lambda: None)
    return connection

async def main():
    listener = Listener(make)
    print(messages.PROTOCOL, *listener.start("127.0.0.1"), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def release(folder: Path, protocol: int) -> Path:
    """This package with another number, as links to all other files."""
    (folder / "hardware").symlink_to(ROOT / "hardware")
    (folder / "loadgen").symlink_to(ROOT / "loadgen")
    for place in ("serving", "serving/wire"):
        (folder / place).mkdir()
        for path in (ROOT / place).iterdir():
            if path.name not in ("wire" if place == "serving" else "messages.py", "__pycache__"):
                (folder / place / path.name).symlink_to(path)
    source = (ROOT / "serving/wire/messages.py").read_text()
    changed = source.replace(f"\nPROTOCOL = {PROTOCOL}\n", f"\nPROTOCOL = {protocol}\n")
    assert changed != source
    (folder / "serving/wire/messages.py").write_text(changed)
    return folder


@pytest.mark.parametrize("other", [PROTOCOL - 1, PROTOCOL, PROTOCOL + 1])
async def test_a_link_to_another_release_is_refused_by_one_line(tmp_path: Path, other: int) -> None:
    tree = release(tmp_path, other) if other != PROTOCOL else ROOT
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(  # noqa: ASYNC220 - nothing else runs on this loop
        command, stdout=subprocess.PIPE, text=True, cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)}
    ) as server:
        try:
            assert server.stdout is not None
            number, host, port = (await asyncio.to_thread(server.stdout.readline)).split()
            assert int(number) == other
            ended: list[str] = []
            proved: list[bool] = []
            connection = Connection(lambda *_: None, lambda _, reason: ended.append(reason))
            secrets = ClusterSecrets(("secret",))
            await connect_proving(
                connection, (host, int(port)), LINK_CHANNEL, "gateway", secrets, lambda: proved.append(True)
            )
            await until(lambda: bool(ended or proved), "the two have met")
            if other == PROTOCOL:
                assert proved
                connection.close("told")
            else:
                assert f"protocol {PROTOCOL}, this side speaks {other}; use the same release" in ended[0]
                assert not proved
        finally:
            server.kill()
