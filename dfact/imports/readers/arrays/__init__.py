"""Files of arrays, which ``dfact import-array`` reads.

array_files     parts that these readers share
numpy_files     npy and npz
zarr_arrays     zarr: stores of Dask, xarray and other programs
"""
