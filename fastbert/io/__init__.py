"""Files: how untrusted ones are opened."""
