"""What learns from this machine and remembers: which way of computing a convolution works."""
