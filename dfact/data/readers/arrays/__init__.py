"""Files of arrays, which ``dfact import-array`` reads.

array_files     parts that these readers share
numpy_files     npy and npz
hdf5            h5, hdf5 and AnnData's h5ad
hdf5_arrays     arrays in HDF5 files, read by rows
matlab          mat
netcdf          nc and nc4
zarr_arrays     zarr: stores of Dask, xarray and other programs
matrix_market   mtx, plain or gzipped
"""
