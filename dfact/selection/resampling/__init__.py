"""Resampling: refits to resampled rows or blocks, and what they say of a model.

bootstrap          loadings of a model, over resampled rows
tensor_bootstrap   the same for tensors
reselection        the selection repeated in each resample
resamples          fits to resampled rows
refits             their start, their results and the matching of their factors
intervals          the intervals of loadings
"""
