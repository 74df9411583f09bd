"""Domain adaptation of embedders: continued pre-training, then contrastive training without labels."""
