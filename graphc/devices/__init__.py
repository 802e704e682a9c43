"""Devices: rates, memory, links."""
