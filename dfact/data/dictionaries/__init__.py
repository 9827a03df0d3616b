"""Dictionaries of a table: REDCap's, UK Biobank's, and codebooks of one row for each item; kinds opens one by its header."""
