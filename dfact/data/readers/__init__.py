"""File formats: one module for each.

A reader knows where the columns and the rows of its file are, not what their values mean.

    base           the contract of a table, and what its readers share
    formats        the reader of a table, chosen by the suffix of its file
    delimited      csv, tsv and txt, plain or gzipped
    parquet        parquet
    spss           sav, zsav and por
    stata          dta
    sas            sas7bdat with its catalogue, and xpt
    readstat       what the three share: ReadStat reads them, through pyreadstat
    numpy_files    npy and npz: arrays, which are no tables; ``dfact import-array`` reads them
"""
