"""Outputs that follow a grammar: vocabularies, compiled grammars, and matchers, which follow one output each."""
