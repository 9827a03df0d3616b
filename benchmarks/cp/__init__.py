"""Benchmarks of CP decompositions."""
