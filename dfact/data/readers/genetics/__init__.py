"""Files of genotypes.

genotypes   the contract, and the text files beside them
plink       bed, pgen
vcf_zarr    stores of bio2zarr and sgkit
"""
