"""Policies for other training systems: what they can honour, and how it is written down for them."""
