"""Benchmarks of models that grow."""
