"""Benchmarks of expectile matrix factorization."""
