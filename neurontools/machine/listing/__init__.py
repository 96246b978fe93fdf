"""What neuron-ls prints: flags, table, JSON, CSV, topology."""
