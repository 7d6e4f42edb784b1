"""Incidents: one per fingerprint, state moves by conditional update, every change a row of the outbox."""
