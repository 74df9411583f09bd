"""Delta files: what a fine-tuned model differs by from its base."""
