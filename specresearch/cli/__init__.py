"""What all commands share: configuration, folders, interruption, and errors in one line."""
