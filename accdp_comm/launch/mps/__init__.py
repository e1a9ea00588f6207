"""NVIDIA MPS: one daemon per GPU, owned by `accdp run` or kept by `accdp mps start`."""
