"""The pytest plugin: machines and faults as fixtures (docs/how-to/pytest.md)."""
