"""What the service costs: round trips, requests a core, memory, compile and step times. See README.md."""
