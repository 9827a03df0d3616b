"""Dictionaries of a table: codebooks of one row for each item, and what kinds of slices share; kinds opens one by its header."""
