"""The banner's address of the page `/pools` logs in once."""

import time
from types import SimpleNamespace
from typing import Any

from serving.launch.banner import banner
from serving.scaling.dashboard.once import OncePasses
from tests.scaling.live.case import config

TOKEN = "0123456789abcdef"


def test_the_printed_address_is_good_once() -> None:
    cluster: Any = SimpleNamespace(
        dashboard_url="http://127.0.0.1:8265",
        token_flag="",
        dashboard_place="",
        logs="/logs",
        session=SimpleNamespace(token=TOKEN),
    )
    (line,) = [line for line in banner(config(), cluster).splitlines() if "pools page" in line]
    address, once = line.split()[-1].split("#once=")
    assert address == "http://127.0.0.1:8265/pools"
    passes = OncePasses(TOKEN, time.time() - 60.0)
    assert passes.admit(once, time.time())
    assert not passes.admit(once, time.time())
