"""Fine-tuning: from a pre-trained model and examples to a trained one, its scores and its predictions."""
