"""The package where Django looks for commands."""
