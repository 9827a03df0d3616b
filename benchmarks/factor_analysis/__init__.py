"""Benchmarks of factor analysis."""
