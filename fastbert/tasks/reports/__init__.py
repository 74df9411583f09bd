"""Reports of errors: what a model gets wrong on a file, as tables, a picture and a summary."""
