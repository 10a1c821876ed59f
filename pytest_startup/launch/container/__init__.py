"""Engines in containers of one container engine, through its API."""
