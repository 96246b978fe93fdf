"""What may go and why, and taking it away."""
