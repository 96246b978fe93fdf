from tests.profiler.conftest import maker, profile_dir, trace  # noqa: F401  # fixtures for all tests here
