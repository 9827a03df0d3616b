"""Commands: parse arguments, call the library, print the results.

Imports every other room; computes nothing itself. dfact's modules are imported inside the commands, so that
``dfact --help`` answers at once.

    main            the command ``dfact``: its subcommands, errors, exit codes
    options         options that several commands share
    model_commands  the commands ``fit`` and ``select``, built from specifications
    models          the specifications, a module for each family
    run, deploy     job files, here and on Kubernetes
    help            the guides
"""
