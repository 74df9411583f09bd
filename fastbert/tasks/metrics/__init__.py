"""The metrics of the tasks, by the field's own libraries."""
