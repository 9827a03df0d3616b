"""File formats: one module for each.

A reader knows where the columns and the rows of its file are, not what their values mean.

    base           the contract of a table, and what its readers share
    formats        the reader of a table, chosen by the suffix of its file
    columns        columns of Arrow as batches, and tables that are held in memory
    delimited      csv, tsv and txt, plain or gzipped
    parquet        parquet files, and folders of them
    arrow          Arrow files and streams, Feather
    r              rds, rda and RData, as tables and as arrays
    r_objects      the objects of R's files, parsed within bounds
    spreadsheet    xlsx, xlsm, xlsb, xls and ods
    numpy_files    npy and npz: arrays, which are no tables; ``dfact import-array`` reads them
"""
