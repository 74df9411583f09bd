"""docs/performance.md: the records of all classes of processors as tables, beside peers, limits and goals."""
