"""Data: datasets, their values and what these mean.

Imports storage, kernels and progress. Here stands what an array means: labels, codes of missing answers, valid ranges,
confounders. Files become datasets in ``imports``.

    dataset        Dataset: values, labels, ranges and confounders, with a fingerprint; stored_dataset opens one
    sources        rows of any array, dense or sparse, in memory or stored
    replicate_weights  weights by which a survey gives its variances
    confounders    how confounders are encoded
    synthetic      data planted from a known model
    examples       the questionnaire that ships with the package, and the files of the demos
"""
