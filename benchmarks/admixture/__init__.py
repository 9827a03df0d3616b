"""Benchmarks of genotypes and of the admixture model."""
