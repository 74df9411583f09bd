"""Models in use: several tasks on one encoder."""
