"""The commands of the studio, a file each, named as the command."""
