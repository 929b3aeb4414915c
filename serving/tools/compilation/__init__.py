"""Compiles the modules that a simulation spends its time in, once per state of the sources; policy code stays Python.

mypyc turns the very same, fully typed sources into C: decisions, and so results, stay equal to the last byte.
"""
