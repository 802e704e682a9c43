"""Host memory of a step: its bytes and the streams of its copies."""
