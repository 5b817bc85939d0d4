"""capwise."""
