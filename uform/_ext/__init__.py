"""The modules between Python and the C API, and the library beside them."""
