"""An image-text model of emoji pictures and their names in 14 languages: see `__main__`."""
