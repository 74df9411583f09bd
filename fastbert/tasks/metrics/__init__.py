"""Metrics of the tasks, computed by the standard libraries."""
