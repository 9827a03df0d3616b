"""Kernels: numerical loops as pure functions on arrays.

Imports NumPy and Numba alone: no input or output, no Dask, no classes of dfact. The matrix formula stands above each loop.

Shape letters used in all kernels:
    n rows (participants) of a block, m columns (items), k components, c confounder columns.
"""
