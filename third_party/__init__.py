"""What is not ours: `manifest.toml` lists it, `finder` says where the build finds it."""
