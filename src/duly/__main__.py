"""`python -m duly` is the command line."""

from duly.cli import main

if __name__ == "__main__":
    main()
