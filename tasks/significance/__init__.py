"""Is A better than B: tests over dev rows, over seeds, and Holm's correction over benchmarks."""
