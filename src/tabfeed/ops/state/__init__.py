"""What fitting gathers, spills and keeps: counts, vocabularies, group statistics, exact sums."""
