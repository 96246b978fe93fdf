"""Several cores of one process as the ranks of a run: recorded once as rank 0, executed by one thread per core."""
