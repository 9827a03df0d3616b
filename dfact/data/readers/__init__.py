"""File formats: one module for each.

A reader knows where the columns and the rows of its file are, not what their values mean.

    base           the contract of a table, and what its readers share
    formats        the reader of a table, chosen by the suffix of its file
    columns        columns of Arrow as batches, and tables that are held in memory
    delimited      csv, tsv and txt, plain or gzipped
    spss           sav, zsav and por
    stata          dta
    sas            sas7bdat with its catalogue, and xpt
    readstat       what the three share: ReadStat reads them, through pyreadstat
    array_files    parts that the readers of arrays share; ``dfact import-array`` reads arrays
    numpy_files    npy and npz
    hdf5           h5, hdf5 and AnnData's h5ad
    hdf5_arrays    arrays in HDF5 files, read by rows
    matlab         mat
    matlab_elements   a check of these files before SciPy reads them
    netcdf         nc and nc4
    matrix_market  mtx, plain or gzipped
    parquet        parquet files, and folders of them
    arrow          Arrow files and streams, Feather
    r              rds, rda and RData, as tables and as arrays
    r_objects      the objects of R's files, parsed within bounds
    genotypes      the contract of genotypes, and the text files beside them
    plink          bed, pgen
    vcf_zarr       stores of bio2zarr and sgkit
    spreadsheet    xlsx, xlsm, xlsb, xls and ods
"""
