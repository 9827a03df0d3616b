"""Files of genotypes.

genotypes   the contract, and the text files next to the genotypes
plink       bed, pgen
vcf_zarr    stores of bio2zarr and sgkit
"""
