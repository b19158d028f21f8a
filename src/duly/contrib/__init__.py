"""duly inside frameworks. Nothing else of duly imports what is here."""
