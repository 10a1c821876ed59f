"""Launchers: start an engine, watch it, stop it, prove that it is gone. They know nothing of checks."""
