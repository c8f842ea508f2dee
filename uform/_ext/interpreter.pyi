# Helpers of the other modules, for Cython alone.
