"""Engines as processes of this host: started, watched and ended by a keeper."""
