"""Settings of a run against an endpoint that nobody serves."""

from typing import Any

from loadgen.driver.settings import DriveSettings
from loadgen.endpoint import Endpoint

ENDPOINT = Endpoint(base_url="http://127.0.0.1:1", path="/v1/completions", model="m")


def settings(**fields: Any) -> DriveSettings:
    return DriveSettings(endpoint=ENDPOINT, **fields)
