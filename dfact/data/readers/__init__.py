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
    array_files    parts that the readers of arrays share; ``dfact import-array`` reads arrays
    numpy_files    npy and npz
    hdf5           h5, hdf5 and AnnData's h5ad
    hdf5_arrays    arrays in HDF5 files, read by rows
    matlab         mat
    netcdf         nc and nc4
    matrix_market  mtx, plain or gzipped
"""
