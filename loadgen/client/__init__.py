"""Sends requests, time-stamps the received bytes, interprets them afterwards."""

from loadgen.client.client import LoadClient
from loadgen.client.digest import Digest, Digester, fill_record
from loadgen.client.exchange import Exchange, Failure, Keep
from loadgen.client.malformed import MALFORMATIONS
from loadgen.client.request import PreparedRequest

__all__ = [
    "MALFORMATIONS",
    "Digest",
    "Digester",
    "Exchange",
    "Failure",
    "Keep",
    "LoadClient",
    "PreparedRequest",
    "fill_record",
]
