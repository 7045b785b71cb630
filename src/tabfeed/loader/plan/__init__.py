"""Which rows come when: arithmetic only, no reading and no threads."""
