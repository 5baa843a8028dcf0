"""The part that learns from this machine which way of computing a convolution works, and remembers it."""
