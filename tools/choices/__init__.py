"""Calibrated choices on WordNet: which of several words names what a definition is a kind of."""
