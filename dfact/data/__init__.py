"""Data: read files and arrays, check them, and store them as datasets.

Imports storage, kernels and progress. Here stands what an array means: labels, codes of missing answers, valid ranges,
confounders. A file format is a reader; what becomes of a file's contents is ingest.

    dataset        Dataset: values, labels, ranges and confounders, with a fingerprint; stored_dataset opens one
    sources        rows of any array, dense or sparse, in memory or stored
    readers        one module for each file format
    ingest         import_table, import_array, import_triplets, join_datasets
    replicate_weights  weights by which a survey gives its variances
    confounders    how confounders are encoded
    synthetic      data planted from a known model
    examples       the questionnaire that ships with the package, and the files of the demos
"""
