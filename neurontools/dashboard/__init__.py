"""What a live dashboard shows beyond the moment: history, rates of processes, what happened, alerts. No terminal here."""
