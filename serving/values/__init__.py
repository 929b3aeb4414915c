"""Shared vocabulary: frozen values that links transmit, that cores accept and return, and that decision logs store.

Imports nothing but ids and errors.
"""
