"""`cloudmatrix demo`: the six things of the README, one after the other, on a system of its own, with a report.

    run ──► stage: the system, the terminal, the folder ──► each step in its turn ──► page

A step is one file here: it does its thing and returns what it has found as a `StepReport`, which terminal and page show
without knowing the step. `demo_run.py` lists them.
"""
