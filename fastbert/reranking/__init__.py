"""Cross-encoders: score and rank texts by their relevance to a query."""
