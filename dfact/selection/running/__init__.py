"""Running fits: many of them on one dataset, with results that survive an interruption.

scheduler       fits in memory, or on shared reads
results_store   finished results in a store
restarts        fits of one model from several starts
estimators      the estimators that selection accepts, and a check that data is what a model was fitted to
"""
