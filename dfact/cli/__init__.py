"""Commands: parse arguments, call the library, print the results.

Imports every other room; computes nothing itself. dfact's modules are imported inside the commands, so that
``dfact --help`` answers at once.

    main            the command ``dfact``: its subcommands, errors, exit codes
    options         options that several commands share; answer_options for answers
    model_commands  the commands ``fit`` and ``select``, built from the specifications of each family
    estimator_options  options for the parameters of an estimator, read from its signature and docstring
    data            the imports; info prints what a dataset holds
    transform, stability  new rows and resampling with a fitted model
    report, export  pages, files and plots of fitted models
    demo            example data and the first commands of its guide; demo_kinds declares the kinds
    help            the guides
    types           types of the values of options, and what they declare to batch jobs: inputs, outputs, fits
"""
