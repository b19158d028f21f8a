"""Observing a running system: health, metrics, the doctor, why a job waits, the Observe view."""
