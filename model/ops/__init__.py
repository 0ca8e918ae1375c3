"""Operations that are written for speed: keyed dropout, cross-entropy, linear layers, fused CPU kernels."""
