"""The hive behind a REST gateway, as a namespace."""
