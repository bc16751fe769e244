"""The command line: text in, settings out, rendering and exit status back."""
