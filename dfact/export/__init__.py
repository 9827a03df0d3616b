"""Export: the numbers of a model as labelled tables and files.

Imports selection and everything below it; draws nothing.

    files             row factors and loadings as csv, parquet, Zarr, Excel, and as the files of admixture programs
    spreadsheets      Excel workbooks, and cells of csv files that are not formulas
    tables            tables of fitted models
    effects           impact and effects of confounders as tables and texts
    statistics        communalities, correlations, figures of the fit, and groups in the factors
    stability         intervals and frequencies of refits, explained
"""
