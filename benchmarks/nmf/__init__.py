"""Benchmarks of NMF."""
