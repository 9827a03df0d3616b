"""Memberships by binomial likelihood: the fit of Q and P in g_ij ~ Binomial(M, (QP)_ij), with missing entries left out.

codes     the counts 0 to M of a block, as bytes
row_block the likelihood of a block of rows, by tiles of columns
passes    the passes over the rows: counts, start, one Newton step of all rows, projection, held-out deviance
start     the spectral start, and that from labelled rows
fit       the steps of the columns, with Anderson's extrapolation and its safeguards
footprint the memory of a fit
growth    the surrogate of the rows that a model has seen, and its update by new rows
shrinkage the frequencies on which new rows are projected without shrinkage
"""
