"""Benchmarks of passes, checkpoints and clusters."""
