"""Integrations with frameworks. No other part of duly imports them."""
