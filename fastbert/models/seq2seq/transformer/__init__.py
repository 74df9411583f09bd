"""The original Transformer: an encoder and a decoder with sinusoidal positions."""
