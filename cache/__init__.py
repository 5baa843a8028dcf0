"""A ladder of ways to compute a convolution, with the choice that works on this machine kept on the disk."""
