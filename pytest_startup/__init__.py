"""Restart-validation acceptance tests of LLM serving engines, as a pytest plugin."""

__version__ = "0.1.0"
