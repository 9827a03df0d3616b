"""Stability: refit a model to resampled rows or blocks, and measure how much it varies.

Imports selection, which a refit may repeat, and everything below it. The public name of ``bootstrap`` is in ``dfact.selection``.

    bootstrap           loadings of a model, over resampled rows
    tensor_bootstrap    the same for tensors
    shares              loadings of refits to shares of the rows, correlated with those of all rows
    reselection         the selection repeated in each resample
    resamples           fits to resampled rows
    refits              their start, their results and the matching of their factors
    intervals           the intervals of loadings
"""
