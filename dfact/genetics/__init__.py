"""Genetics, a slice: files of genotypes, admixtures, and plots of memberships and scores.

    admixture           Admixture: the steps of a fit, the projection of new individuals; footprint, its memory
    distances           F_ST between the populations of an admixture
    block_bootstrap     standard errors of ancestry proportions, by resampled blocks of SNPs
    matcher             SNPs of other genotypes as those of a fitted model
    genotype_file       the contract of files with genotypes, and the text files next to them
    plink, vcf, vcf_zarr    bed and pgen; VCF; stores of bio2zarr and sgkit
    kernels             genotypes of two bits: counted, and transposed into rows
    importer            import_genotypes: the variants of a file become columns, panel by panel
    chosen_variants, populations    the variants that an import takes, and the populations of the individuals
    presenter           what a report shows of an admixture
    structure_plot      memberships of several runs as stacked bars, with their components aligned (alignment); scores_plot, those of a PCA
    admixture_files, pong   .Q and .P files, and those of pong
    specs, import_options, pong_command, structure_command, demo, examples    commands, their options, and the demo

The likelihood of an admixture, its passes and its maximization are in :mod:`dfact.models.binomial`, as other models use them.
"""
