"""What of the tests runs, how long each may take, which failures turn the check red: docs/evidence/gate.md has the rules."""
