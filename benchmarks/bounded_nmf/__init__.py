"""Benchmarks of ICQF and L1NMF."""
