"""Removing entries: rules, plan, removal, policy."""
