"""Commands: parse arguments, call the library, print the results.

Imports every other room; computes nothing itself. dfact's modules are imported inside the commands, so that
``dfact --help`` answers at once.

    main              the command ``dfact``: its subcommands, errors, exit codes
    options, types    options that several commands share; types of their parameters
    models            the options of each family of models, for ``fit`` and ``select``
    ingest            ``import``, ``import-array``, ``import-triplets``, ``join``
    help              the guides
"""
