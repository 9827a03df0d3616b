"""Benchmarks of ICQF and NMF."""
