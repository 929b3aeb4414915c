"""Output shown in the READMEs, each block produced by a program.

`<!-- printed: NAME -->` before a code block names its maker. `python -m docs.printed` regenerates all of them, and
tests compare the READMEs with the programs' output.
"""
