"""What the test suite as a whole needs: its plugins, and a Ctrl-C that is heard."""

from __future__ import annotations

import signal

pytest_plugins = ["pytester", "helpers_docker", "helpers_launch"]

# A suite that is started in the background of a script inherits an ignored SIGINT, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
