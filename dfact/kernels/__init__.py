"""Numerical kernels: pure functions on arrays. No input or output, no Dask, no classes of dfact.

Shape letters used in all kernels:
    n rows (participants) of a block, m columns (items), k components, c confounder columns.
"""
