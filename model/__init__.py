"""What learns: the encoder, its objectives and data feeding; the benchmarks, their heads and metrics."""
