"""Numbers from a trace: metrics, summary, operators."""
