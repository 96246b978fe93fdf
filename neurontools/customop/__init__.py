"""Custom C++ operators: build, package, load, worker, checks."""
