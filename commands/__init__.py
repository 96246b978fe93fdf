"""One module per command: arguments in, exit code out."""
