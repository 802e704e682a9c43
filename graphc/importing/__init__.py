"""What readers of other frameworks' models share."""
