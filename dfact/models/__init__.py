"""The factorizations, one file for each."""
