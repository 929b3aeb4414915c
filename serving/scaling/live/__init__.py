"""The scaling board: sees pools, traffic and hardware, keeps holds and the ledger, and is the one place that scales."""
