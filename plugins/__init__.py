"""The first-party plugins, installed as `uform_plugins`."""
