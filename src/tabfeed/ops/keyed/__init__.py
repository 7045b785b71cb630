"""Operators that learn a table with a row for each key: their base, JoinGroupby, TargetEncoding."""
