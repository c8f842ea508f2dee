"""Measures the training step, the losses and each operation on one GPU: see `__main__`."""
