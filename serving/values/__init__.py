"""One vocabulary: frozen values that cross a link, that cores take and return, and that decision logs keep.

Imports nothing but ids and errors.
"""
