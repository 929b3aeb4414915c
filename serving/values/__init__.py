"""Shared vocabulary: frozen values that are sent over links, that cores accept and return, and that decision logs
store.

Imports nothing but ids and errors.
"""
