"""Benchmarks of the files that users bring."""
