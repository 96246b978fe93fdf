"""neuron_parallel_compile: graphs are collected by a trial run and compiled side by side (compile-runtime.md 1.6)."""
