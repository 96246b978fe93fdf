"""neuron_parallel_compile: a trial run collects graphs, worker processes compile them side by side."""
