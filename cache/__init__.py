"""What learns from this machine and remembers: convolution routes, step caches, encodings."""
