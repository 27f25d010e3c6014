"""The commands of this wing, a file each, named as the command."""
