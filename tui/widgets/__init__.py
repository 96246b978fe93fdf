"""Shared by the terminal programs: lines, panes, keys, themes, the terminal driver."""
