"""Dialects: what is known of each engine's log, endpoints and options, as data."""
