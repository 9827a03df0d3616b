"""Numerical kernels: pure functions on arrays, with the matrix formula above each loop.

They read and write no files, use no Dask, and import NumPy and Numba alone.

    jit                     the decorators that compile everything here
    entries                 single entries: missing codes, statistics, scattering of sparse values
    active_set, pivoting    ICQF: each row at its optimum within bounds, and the tableau it pivots on
    admm, bound_fill        ICQF: the row steps of ADMM and of the splitless solver
    box_qp, elastic_net     quadratic programs with a box or an elastic-net penalty
    cp, samples, adamax     CP: targets, column updates, samples of slices and their steps
    expectile, expectile_dense   expectile factorization: rows with few and with many observed entries
    kmeans                  assignment of directions to cluster centres

Shape letters used in all kernels:
    n rows (participants) of a block, m columns (items), k components, c confounder columns.
"""
