"""The driver's sysfs tree: what it shows of a machine, a mirror of it in a directory, and reading it."""
