"""Training on real data from the command line."""
