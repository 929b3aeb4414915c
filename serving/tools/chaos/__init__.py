"""`cloudmatrix chaos`: seeded faults against a live local system under load, and a report of their cost.

    scenario + seed ──► schedule (pure) ──► injector ──► processes, shared memory, clients that disconnect
    asks ──► reference, undisturbed ──► load ──► answers ── compared token by token ──► findings (pure) ──► report

Imports no Ray: it uses HTTP, processes and shared memory, like an operator would.
"""
