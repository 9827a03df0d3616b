"""Bounded non-negative matrix factorization: ICQF and ℓ1-NMF."""
