"""From a command to the runs that it asks for: flags, checks, and what a run is before it
starts.
"""
