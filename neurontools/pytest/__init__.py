"""The pytest plugin: machines and faults as fixtures (docs/pytest.md)."""
