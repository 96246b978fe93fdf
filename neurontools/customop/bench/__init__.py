"""What an operator costs, by the model and on this computer, and what to do about it."""
