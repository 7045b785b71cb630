"""What fitting gathers, spills and keeps: counts, vocabularies, exact sums."""
