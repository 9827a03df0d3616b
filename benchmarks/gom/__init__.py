"""Benchmarks of grade of membership."""
