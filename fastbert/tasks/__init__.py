"""Tasks: what pre-trained encoders are fine-tuned for."""
