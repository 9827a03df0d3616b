"""Kernels: numerical loops as pure functions on arrays.

Imports NumPy, Numba and the cache of compiled code: no input or output, no Dask. The only classes are tuples of arrays and
numbers. The matrix formula stands above each loop.

Shape letters used in all kernels:
    n rows (participants) of a block, m columns (items), k components, c confounder columns.

    bound_fill, admm                a step of the rows of ICQF in an iteration, by either solver
    active_set, pivoting            a row of ICQF at its optimum: the loop over violated bounds, and the tableau it works on
    norms                           the same problems of ICQF with a norm as penalty, of many columns and of rows at their optimum
    box_qp, elastic_net             quadratic programs of many columns with one Gram matrix: in a box, with an ℓ1 penalty
    expectile, expectile_dense      rows of expectile regression: any, and those with few missing entries
    cp, samples, adamax             tensors: column updates, samples of slices, and their steps
    assignment                      assignment of points to centres
    parts                           connected parts of the columns
    divergence                      rows of NMF at the Kullback-Leibler divergence
    binomial                        memberships by binomial likelihood: slopes, curvatures, steps
    principal                       moments of columns, standardized entries, probabilistic PCA
    sparse_products                 rows of a sparse matrix times a narrow one
    entries                         missing codes, column statistics, filling
    jit                             the decorators that compile all kernels
"""
