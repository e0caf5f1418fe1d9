"""The demonstration on the emulator."""
