"""What turns contents of each modality into columns."""
