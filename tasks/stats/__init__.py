"""Statistics: selection of the best run, paired comparisons over rows and seeds, intervals, Holm correction."""
