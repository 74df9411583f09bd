"""Hidden states as features."""
