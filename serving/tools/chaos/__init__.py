"""`cloudmatrix chaos`: seeded faults against a live local system under load, and a report of what they cost.

    scenario + seed ──► schedule (pure) ──► injury ──► processes, shared memory, clients that leave
    asks ──► reference, undisturbed ──► load ──► answers ── compared token by token ──► findings (pure) ──► report

Imports no Ray: what it knows of the system is HTTP, processes and shared memory, as an operator would.
"""
