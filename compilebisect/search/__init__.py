"""Carries out the walk over worker processes: probes, golden calls, ends of processes, proofs. Imports no torch."""
