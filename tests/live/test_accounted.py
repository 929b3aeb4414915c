"""Facts of a memory server, scaled up to the simulated system."""

from serving.config.simulated_cost import AccountedKv


def test_everything_that_counts_bytes_is_scaled_and_nothing_else() -> None:
    kv = AccountedKv(block_bytes=1000, real_bytes=64, token_bytes=10)
    facts = {
        "ledger": {"dram_used_bytes": 128, "entries": 2, "fill": 0.5},
        "counters": {"bytes_written": 64, "writes": 1},
        "bounds_s": [0.1],
        "name": "a",
    }
    assert kv.accounted_facts(facts) == {
        "ledger": {"dram_used_bytes": 2000, "entries": 2, "fill": 0.5},
        "counters": {"bytes_written": 1000, "writes": 1},
        "bounds_s": [0.1],
        "name": "a",
    }
