"""The scaling board: monitors pools, traffic and hardware, stores holds and the ledger, and makes all scaling calls."""
