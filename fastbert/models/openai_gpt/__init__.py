"""GPT, the model of 2018."""
