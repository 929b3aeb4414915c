"""Output that the READMEs show, each piece made by a program.

`<!-- printed: NAME -->` before a code block says what made it. `python -m docs.printed` makes all of them again, and
tests compare what the READMEs say with what the programs print.
"""
