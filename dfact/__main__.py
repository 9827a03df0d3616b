"""The command line as ``python -m dfact``."""

from dfact.cli.main import main

if __name__ == "__main__":
    main()
