"""The components: one file a group, and a new file is enough to be found."""
