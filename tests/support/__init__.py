"""Helpers shared by all tests: `from tests.support.eventually import eventually`."""
