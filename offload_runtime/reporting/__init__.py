"""Render what was decided and what was measured. Imports no torch."""
