"""Checks: one module per concern, each a pure function of records to a verdict."""
