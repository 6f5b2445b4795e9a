"""What the core needs from outside, as small protocols.

Every implementation of a port passes the port's contract suite. Doubles for tests ship beside the real
parts.
"""
