"""Several workers: their environment, groups, collectives and torch.distributed's backend."""
