from tests.cache.conftest import entry, frozen, open_cache, tree  # noqa: F401  # fixtures for all tests here
