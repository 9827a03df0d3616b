"""File formats, a slice: statistical programs, spreadsheets, R, HDF5, MATLAB, and dictionaries of REDCap and UK Biobank.

statistical    SPSS, Stata and SAS, through ReadStat
spreadsheet    xlsx, xlsm, xlsb, xls and ods
r              rds, rda and RData, as tables and as arrays
r_objects      the objects of R's files
hdf5           h5, hdf5 and AnnData's h5ad
hdf5_arrays    arrays in HDF5 files, read by rows
matlab         mat
netcdf         nc and nc4
matrix_market  mtx, plain or gzipped
file_source    rows of an array in a file, which a library parses
redcap         data dictionaries of REDCap
uk_biobank     data dictionaries of UK Biobank
isolation      parsers in child processes
"""
