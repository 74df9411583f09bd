"""What a pre-trained encoder is used for."""
