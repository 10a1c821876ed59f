"""Plugins that the test suite itself needs."""

from __future__ import annotations

pytest_plugins = ["pytester", "helpers_docker", "helpers_launch"]
