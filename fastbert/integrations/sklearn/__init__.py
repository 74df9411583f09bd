"""Estimators of scikit-learn: `TextEmbedder` turns texts into features, `TextClassifier` is fine-tuned by `fit`."""
