"""A KV-cache pool over a recorded trace, in virtual time: real ring, ledger and routers; no bytes and no clock."""
