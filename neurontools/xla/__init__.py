"""The lazy device: engine, trace, executables."""
