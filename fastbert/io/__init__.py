"""Read untrusted files, write files atomically, lock folders."""
