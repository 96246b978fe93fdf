"""The data behind neuron-top: history, process rates, events and alerts. No terminal here."""
