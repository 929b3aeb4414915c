"""Sends requests, stamps what comes back, makes sense of it afterwards."""

from loadgen.client.client import Client
from loadgen.client.digest import Digest, digest, fill_record
from loadgen.client.digester import Digester
from loadgen.client.exchange import Exchange, Failure, Keep
from loadgen.client.malformed import MALFORMATIONS
from loadgen.client.request import PreparedRequest, prepare

__all__ = [
    "MALFORMATIONS",
    "Client",
    "Digest",
    "Digester",
    "Exchange",
    "Failure",
    "Keep",
    "PreparedRequest",
    "digest",
    "fill_record",
    "prepare",
]
