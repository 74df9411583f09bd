"""Distillation: losses between a student and its teacher, and students initialised from a teacher's layers."""
