"""What readers of other frameworks' models share: names, weights, roles, problems, the network."""
