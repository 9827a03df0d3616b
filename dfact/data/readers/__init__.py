"""File formats: one module for each.

A reader knows where the columns and the rows of its file are, not what their values mean.

    base           the contract of a table, and what its readers share
    isolation      parsers in child processes
    formats        the reader of a table, chosen by the suffix of its file
    text           csv, tsv and txt, plain or compressed
    columnar       parquet, Arrow and Feather, and columns of Arrow as batches
    statistical    SPSS, Stata and SAS, through ReadStat
    frames         data frames
    spreadsheet    xlsx, xlsm, xlsb, xls and ods
    r              rds, rda and RData, as tables and as arrays
    r_objects      the objects of R's files
    arrays         NumPy, HDF5, MATLAB, NetCDF, Zarr and Matrix Market
    genetics       PLINK and VCF Zarr
    zarr_input     Zarr stores of other programs, opened for reading
"""
