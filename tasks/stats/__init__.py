"""Statistics: paired comparisons over rows and seeds, intervals, Holm correction."""
