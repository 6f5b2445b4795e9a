"""The voice agent's HTTP side: calls coming in, the line's sockets, and the carriers' call control."""
