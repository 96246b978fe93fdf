"""From graph to NEFF: canonical graph, hash, cost model, container."""
