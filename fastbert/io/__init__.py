"""Files: how untrusted ones are opened, and how ours are written and locked."""
