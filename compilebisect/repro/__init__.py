"""Repro scripts: their text, and the proof that they show the fault."""
