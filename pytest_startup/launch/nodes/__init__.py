"""One engine over several hosts: reached, prepared, started, watched and ended as one."""
