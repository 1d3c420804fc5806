"""`python -m specresearch` lists the commands, as the console script does."""

from specresearch.cli.main import main

if __name__ == "__main__":
    main()
