"""Observers: endpoints, GPUs, hosts, cache folders and logs, read without changing anything."""
