"""Models of several ranks in one process, which NxD's ModelBuilder makes: recorded, compiled, stored and executed."""
