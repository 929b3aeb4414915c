"""`[kv_events]`: what is refused, in one line each."""

import re
from pathlib import Path

import pytest

from serving.errors import ConfigError
from tests.config.toml_file import load

REFUSED = {
    "events without an address": (
        '[kv_events]\nendpoint = "5557"',
        "[kv_events] endpoint = '5557' is not an address such as \"tcp://127.0.0.1:5557\"",
    ),
    "events at a port that is none": (
        '[kv_events]\nreplay = "tcp://127.0.0.1:70000"',
        "[kv_events] replay = 'tcp://127.0.0.1:70000' is not an address such as",
    ),
    "events for everybody": (
        '[kv_events]\nendpoint = "tcp://*:5557"',
        "[kv_events] endpoint = 'tcp://*:5557' can be reached from other machines, and events contain token ids:",
    ),
    "events repeated for everybody": (
        '[kv_events]\nreplay = "tcp://10.0.0.1:5657"',
        "[kv_events] replay = 'tcp://10.0.0.1:5657' can be reached from other machines",
    ),
    "events at the end of all ports": (
        '[kv_events]\nendpoint = "tcp://127.0.0.1:65535"',
        "[kv_events] endpoint has 1 ports from 65535 on for publishers = 64: choose a lower port",
    ),
    "events and replays at the same ports": (
        '[kv_events]\nreplay = "tcp://127.0.0.1:5600"',
        "[kv_events] endpoint and replay share ports: with publishers = 64 they must be as many ports apart",
    ),
    "events of nobody": (
        '[kv_events]\nnamespaces = ["default", "acme"]',
        "[kv_events] namespaces names 'acme', which is no tenant: [[namespaces]] lists them",
    ),
    "events in a form of their own": (
        '[kv_events]\nform = "json"',
        "[kv_events] form",
    ),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_events_that_cannot_be_published_so(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path / 'site.toml'}: {message}")):
        load(tmp_path, text)


def test_events_for_other_machines_and_tenants_if_it_is_said(tmp_path: Path) -> None:
    text = '[kv_events]\nendpoint = "tcp://*:5557"\nreplay = ""\nallow_remote = true\nnamespaces = ["acme"]\n'
    config = load(tmp_path, text + '[[namespaces]]\nname = "acme"\n')
    assert config.kv_events.addresses() == (("*", 5557), None)
