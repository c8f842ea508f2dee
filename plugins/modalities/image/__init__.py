"""Images as square patches; `decode` reads encoded ones."""
