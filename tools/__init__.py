"""What a developer runs: the build, the tests, the demonstration."""
