"""Kernels of questionnaires: numerical loops as pure functions on arrays, as those of :mod:`dfact.kernels`.

polychoric    tables of pairs of items by counting bits, and the correlation of each
oblimin       oblimin rotations of loadings, by gradient projection
strata        counts of answers by stratum and group
"""
