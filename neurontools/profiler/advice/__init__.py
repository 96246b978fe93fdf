"""Advice: rules that look for a known fault of a profiled program, and say what to change and what it gains."""
