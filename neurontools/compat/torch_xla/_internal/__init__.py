"""Parts of torch_xla that libraries ask for other accelerators."""
