"""Fuzzing of everything that reads files: python -m benchmarks.fuzz."""
