"""Admixture: Admixture, the ancestry of individuals in several populations.

    estimator    the steps of a fit, the projection of new individuals, the checks
    footprint    the memory of a fit, and the steps of the frequencies that it allows

The likelihood, its passes and its maximization are in :mod:`dfact.models.binomial`, as other models may use them.
"""
