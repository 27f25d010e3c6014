"""Cases by topic."""
