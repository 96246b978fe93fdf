from tests.tui.quick_pilot import quick_pilot  # noqa: F401  # a fixture for all tests here
