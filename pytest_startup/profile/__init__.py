"""The profile: YAML file → schema → frozen dataclasses, with messages that name file, line and key."""
