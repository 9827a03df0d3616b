"""Expectile matrix factorization: ExpectileMF."""
