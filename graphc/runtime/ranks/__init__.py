"""Programs of several ranks: launchers, transport of bytes between ranks, and collectives."""
