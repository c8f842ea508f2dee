"""The oracle: the encoder and the objectives in float64 NumPy, differentiated by autograd.

It says what the library should compute, straight from the formulas, with no thought for speed. Vectors and matrices are
plain arrays, a column is a row of its segment's array, and every name is the formulas' own.
"""
