"""The names of the experiments; imports no torch."""

from __future__ import annotations

EXPERIMENTS = {
    "ablation": "what BERT's objectives contribute (Table 5): without NSP, left to right, with a BiLSTM",
    "size": "models of several sizes (Table 6)",
    "features": "a BiLSTM on frozen features, beside fine-tuning (Table 7)",
    "masking": "mask rates and replacement rules of masked LM (Table 8)",
    "baselines": "GPT, ELMo, static word vectors and an HMM, on the same text",
    "transfer": "scratch, frozen and fine-tuned, with 100, 1,000 and all examples",
    "layers": "what each layer knows about parts of speech",
    "blimp": "minimal pairs of sentences, by phenomenon: BERT, left to right, n-grams",
    "polysemy": "words of several meanings: one vector per word, ELMo's and BERT's states in context",
    "distillation": "students of half the layers, trained alone and by a teacher",
}
"""The names, each also that of a module of `fastbert.experiments`, and what it compares."""
